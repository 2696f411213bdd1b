//! Folders of images: `root/class/file.png` or `.jpg`, and in folders below, as torchvision's
//! `ImageFolder`.
//!
//! Opening a folder lists the files (`folder_files.rs`) and reads none. A sample is read and decoded on a
//! loader's thread.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use candle_core::{Device, Tensor};
use parking_lot::Mutex;

use crate::{
    batch::Batch,
    dataset::Dataset,
    digest::{sampled, sha256},
    error::{DataFault, Error, Result, check_count},
    folder_files::FolderListing,
    image_pipeline::ImagePipeline,
    pass::Pass,
};

/// Images in folders, one folder for each class.
///
/// ```no_run
/// use candelabrum_datasets::{Dataset, ImageFolder, ImagePipeline};
///
/// # fn main() -> candelabrum_datasets::Result<()> {
/// // pets/cat/1.jpg, pets/cat/2.jpg, pets/dog/1.png
/// let pets = ImageFolder::open("pets", ImagePipeline::rgb([64, 64])?)?;
/// assert_eq!(pets.classes(), ["cat", "dog"]);
/// assert_eq!(pets.len(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Arc<[String]>,
    /// The class of each image, and its path below the folder of the class.
    files: Arc<[(u32, OsString)]>,
    left_out: usize,
    pipeline: ImagePipeline,
    skips_corrupt: bool,
    /// The numbers of the files that could not be decoded so far.
    corrupt: Arc<Mutex<BTreeSet<usize>>>,
    /// The digest of the files, computed at the first request.
    listing: Arc<OnceLock<String>>,
}

/// How a folder of images is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FolderOptions {
    /// The classes, if they are known: see [`ImageFolder::open_with_classes`].
    pub classes: Option<Vec<String>>,
    /// Whether to leave out pictures in other formats than PNG and JPEG, and pictures that are in no
    /// class. Otherwise they are an error.
    pub ignore_others: bool,
}

/// The number of files whose contents are a part of the fingerprint.
const COMPARED: usize = 64;

impl ImageFolder {
    /// Lists the images of all classes: PNG and JPEG files, by the endings of their names, in the folder of
    /// a class and in all folders below it. Links count as what they lead to, so an image that is reached
    /// twice is two samples.
    ///
    /// The files have the order of torchvision's `ImageFolder`: by their folders, then by their names.
    /// Hidden files and folders are left out, and so are files that are no pictures. They are
    /// [counted](Self::left_out).
    ///
    /// # Errors
    /// Pictures that would be left out, because they have another format or lie beside the folders of the
    /// classes ([`FolderOptions::ignore_others`]). A folder that cannot be read, no folders of classes, a
    /// class without images, a class whose name is not UTF-8, a link to nothing or to a folder that
    /// contains it.
    pub fn open(root: impl AsRef<Path>, pipeline: ImagePipeline) -> Result<Self> {
        Self::open_with(root, pipeline, &FolderOptions::default())
    }

    /// Lists the images of a second folder, for instance for tests, with the labels of the first one:
    /// give it the [`classes`](Self::classes) of that. A class that the second folder does not have
    /// keeps its label.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a folder of another class.
    pub fn open_with_classes(
        root: impl AsRef<Path>,
        pipeline: ImagePipeline,
        classes: &[String],
    ) -> Result<Self> {
        let options = FolderOptions { classes: Some(classes.to_vec()), ignore_others: false };
        Self::open_with(root, pipeline, &options)
    }

    /// [`open`](Self::open) with options.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a folder of another class than those that are known.
    pub fn open_with(
        root: impl AsRef<Path>,
        pipeline: ImagePipeline,
        options: &FolderOptions,
    ) -> Result<Self> {
        let root = root.as_ref();
        let (names, mut found) = FolderListing::classes(root)?;
        let classes = options.classes.as_ref().unwrap_or(&names);
        if let Some(unknown) = names.iter().find(|name| !classes.contains(name)) {
            let (folder, classes) = (root.join(unknown), classes.len());
            let what = format!(
                "not one of the {classes} classes: open it with those of the folder for training"
            );
            return Err(DataFault::Mismatch.at(folder, what));
        }
        let mut empty = None;
        for (class, name) in (0..).zip(classes).filter(|(_, name)| names.contains(name)) {
            let before = found.images.len();
            found.add_class(class, root, name)?;
            if found.images.len() == before {
                empty.get_or_insert(root.join(name));
            }
        }
        let FolderListing { images, left_out, unread, first_unread } = found;
        if let Some(first) = first_unread.filter(|_| !options.ignore_others) {
            let first = first.display();
            let what = format!(
                "{unread} picture(s) would be left out, the first one is {first}: PNG and JPEG \
                 files in the folders of classes are read, so convert, rename or move the others, \
                 or set FolderOptions::ignore_others"
            );
            return Err(DataFault::Unsupported.at(root, what));
        }
        if let Some(folder) = empty {
            let what = "no files with the ending png, jpg or jpeg in the folder of this class or \
                        below it";
            return Err(DataFault::Missing.at(folder, what));
        }
        check_count(images.len())?;
        Ok(Self {
            root: root.into(),
            classes: classes.as_slice().into(),
            files: images.into(),
            left_out: left_out + unread,
            pipeline,
            skips_corrupt: false,
            corrupt: Arc::default(),
            listing: Arc::default(),
        })
    }

    /// The same folder, in which files that cannot be decoded are no errors. They are
    /// [counted](Self::corrupt), and a warning names each of them once.
    ///
    /// In training, the next file that can be decoded takes the place of a corrupt one, so that batches
    /// keep their size. In an evaluation, corrupt files are left out.
    #[must_use]
    pub fn skipping_corrupt(self) -> Self {
        Self { skips_corrupt: true, ..self }
    }

    /// The same folder for another use: for instance with a pipeline that does not crop at random.
    #[must_use]
    pub fn with_pipeline(self, pipeline: ImagePipeline) -> Self {
        Self { pipeline, ..self }
    }

    /// The names of the classes, in alphabetical order unless they were
    /// [given](Self::open_with_classes). The label of a class is its place here.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// What becomes of each file.
    pub fn pipeline(&self) -> &ImagePipeline {
        &self.pipeline
    }

    /// The file and the label of a sample.
    pub fn file(&self, sample: usize) -> Option<(PathBuf, u32)> {
        let (class, name) = self.files.get(sample)?;
        Some((self.root.join(self.classes.get(*class as usize)?).join(name), *class))
    }

    /// The number of files that are no images of a class: hidden ones, files that are no pictures, and
    /// the pictures that [`FolderOptions::ignore_others`] allows. A hidden folder counts as one.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The number of files that could not be decoded so far, on this rank.
    pub fn corrupt(&self) -> usize {
        self.corrupt.lock().len()
    }

    /// Appends the numbers of a sample, and gives its label. `None`: the file is corrupt and is
    /// skipped.
    fn append(&self, to: &mut Vec<f32>, sample: usize, pass: &Pass) -> Result<Option<u32>> {
        if self.skips_corrupt && self.corrupt.lock().contains(&sample) {
            return Ok(None);
        }
        let len = self.files.len();
        let (path, label) = self.file(sample).ok_or(Error::NoSuchSample { sample, len })?;
        let encoded = fs::read(&path).map_err(Error::io("read", &path))?;
        let Err(error) = self.pipeline.extend(to, &encoded, sample, pass) else {
            return Ok(Some(label));
        };
        let what = format!(
            "not a readable image: {error}: repair or delete the file, or skip corrupt files"
        );
        let error = DataFault::Corrupt.at(path, what);
        if !self.skips_corrupt {
            return Err(error);
        }
        if self.corrupt.lock().insert(sample) {
            tracing::warn!(target: "candelabrum::data", "skipped: {error}");
        }
        Ok(None)
    }

    /// Appends the numbers of a sample, or of the next one that is not corrupt, and gives its label.
    fn append_or_next(&self, to: &mut Vec<f32>, sample: usize, pass: &Pass) -> Result<u32> {
        let files = self.files.len();
        for next in (sample..files).chain(0..sample) {
            if let Some(label) = self.append(to, next, pass)? {
                return Ok(label);
            }
        }
        let first = self.clone().strictly().append(to, sample, pass);
        let first = first.err().map_or_else(String::new, |error| error.to_string());
        let what = format!(
            "none of the {files} files is a readable image, the first one because: {first}"
        );
        Err(DataFault::Corrupt.at(&self.root, what))
    }

    fn strictly(self) -> Self {
        Self { skips_corrupt: false, ..self }
    }
}

impl Dataset for ImageFolder {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(&self, samples: &[u32], pass: &Pass) -> Result<Batch> {
        let [channels, height, width] = self.pipeline.shape();
        let mut xs = Vec::with_capacity(samples.len() * channels * height * width);
        let mut ys = Vec::with_capacity(samples.len());
        for &sample in samples {
            let (sample, len) = (sample as usize, self.files.len());
            if sample >= len {
                return Err(Error::NoSuchSample { sample, len });
            }
            if pass.training {
                ys.push(self.append_or_next(&mut xs, sample, pass)?);
            } else {
                ys.extend(self.append(&mut xs, sample, pass)?);
            }
        }
        let count = ys.len();
        let xs = Tensor::from_vec(xs, (count, channels, height, width), &Device::Cpu)?;
        Ok(Batch { xs, ys: Tensor::from_vec(ys, count, &Device::Cpu)? })
    }

    /// # Cost
    /// The first call asks for the size of every file, and reads at most 64 KiB of each of 64 files.
    fn fingerprint(&self) -> Result<String> {
        let listing = match self.listing.get() {
            Some(known) => known.clone(),
            None => {
                let listing = listing(self)?;
                self.listing.get_or_init(|| listing).clone()
            }
        };
        let (files, skips) = (self.files.len(), self.skips_corrupt);
        Ok(format!("{files} files {listing}, {:?}, skips corrupt files: {skips}", self.pipeline))
    }
}

/// The SHA-256 of the names and sizes of all files, and of the contents of some of them.
fn listing(folder: &ImageFolder) -> Result<String> {
    let (mut text, every) = (Vec::new(), folder.files.len().div_ceil(COMPARED).max(1));
    for (sample, (class, name)) in folder.files.iter().enumerate() {
        let Some((path, _)) = folder.file(sample) else { break };
        let size = fs::metadata(&path).map_err(Error::io("find", &path))?.len();
        let content = if sample % every == 0 {
            let file = File::open(&path).map_err(Error::io("open", &path))?;
            sampled(&file, size).map_err(Error::io("read", &path))?
        } else {
            String::new()
        };
        let class = &folder.classes[*class as usize];
        text.extend_from_slice(format!("{class}/{}/{size}/{content}\n", name.display()).as_bytes());
    }
    Ok(sha256(&text))
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolder")
            .field("root", &self.root)
            .field("len", &self.files.len())
            .field("classes", &self.classes.len())
            .field("left_out", &self.left_out)
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}
