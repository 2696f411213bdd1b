//! Folders of images: `root/class/file.png` or `.jpg`, as torchvision's `ImageFolder`.
//!
//! Opening a folder lists the files and reads none. A sample is read and decoded on a loader's thread.
//! Classes and files are in the order of their names, so all ranks number them alike.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use candle_core::{Device, Tensor};
use parking_lot::Mutex;

use crate::{
    batch::Batch,
    dataset::Dataset,
    digest::sha256,
    error::{Error, PictureError, Result},
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
    files: Arc<[Picture]>,
    pipeline: ImagePipeline,
    skips_corrupt: bool,
    /// The numbers of the files that could not be decoded so far.
    corrupt: Arc<Mutex<BTreeSet<usize>>>,
    /// The digest of the files' names and sizes, computed at the first request.
    listing: Arc<OnceLock<String>>,
}

struct Picture {
    class: u32,
    name: OsString,
}

impl ImageFolder {
    /// Lists the images of all classes. Other files and folders are ignored.
    ///
    /// # Errors
    /// A folder that cannot be read, no folders of classes, a class without images, or a class whose
    /// name is not UTF-8.
    pub fn open(root: impl AsRef<Path>, pipeline: ImagePipeline) -> Result<Self> {
        let found = folders(root.as_ref())?;
        Self::list(root.as_ref(), pipeline, &found, &found)
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
        let root = root.as_ref();
        let found = folders(root)?;
        if let Some(unknown) = found.iter().find(|name| !classes.contains(name)) {
            let (folder, classes) = (root.join(unknown), classes.len());
            return Err(PictureError::UnknownClass { folder, classes }.into());
        }
        Self::list(root, pipeline, classes, &found)
    }

    /// Lists the images of those classes for which a folder was found.
    fn list(
        root: &Path,
        pipeline: ImagePipeline,
        classes: &[String],
        found: &[String],
    ) -> Result<Self> {
        let mut files = Vec::new();
        for (class, name) in (0..).zip(classes).filter(|(_, name)| found.contains(name)) {
            let (folder, before) = (root.join(name), files.len());
            for (path, name) in entries(&folder)? {
                if is_picture(&path) && !is_hidden(&name) && path.is_file() {
                    files.push(Picture { class, name });
                }
            }
            if files.len() == before {
                return Err(PictureError::EmptyClass { folder }.into());
            }
        }
        if u32::try_from(files.len()).is_err() {
            return Err(Error::TooManySamples { len: files.len() });
        }
        Ok(Self {
            root: root.into(),
            classes: classes.into(),
            files: files.into(),
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
        let picture = self.files.get(sample)?;
        let class = self.classes.get(picture.class as usize)?;
        Some((self.root.join(class).join(&picture.name), picture.class))
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
        let error = match self.pipeline.extend(to, &encoded, sample, pass) {
            Ok(()) => return Ok(Some(label)),
            Err(PictureError::Decode { source }) => PictureError::File { path, source },
            Err(other) => other,
        };
        if !self.skips_corrupt {
            return Err(error.into());
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
        Err(PictureError::AllCorrupt { root: self.root.clone(), files, first }.into())
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
    /// The first call asks for the size of every file.
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

/// The SHA-256 of the names and sizes of all files.
fn listing(folder: &ImageFolder) -> Result<String> {
    let mut text = Vec::new();
    for sample in 0..folder.files.len() {
        let Some((path, label)) = folder.file(sample) else { break };
        let size = fs::metadata(&path).map_err(Error::io("find", &path))?.len();
        let (class, name) = (&folder.classes[label as usize], &folder.files[sample].name);
        text.extend_from_slice(format!("{class}/{}/{size}\n", name.display()).as_bytes());
    }
    Ok(sha256(&text))
}

/// The names of the folders of classes, in alphabetical order. There is at least one.
fn folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (path, name) in entries(root)? {
        if path.is_dir() && !is_hidden(&name) {
            names.push(name.into_string().map_err(|_| Error::PathNotText { path })?);
        }
    }
    if names.is_empty() {
        return Err(PictureError::NoClasses { root: root.into() }.into());
    }
    Ok(names)
}

/// The paths and names in a folder, in the order of the names.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, OsString)>> {
    let listed = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| (entry.path(), entry.file_name()))).collect()
    });
    let mut listed: Vec<_> = listed.map_err(Error::io("list", folder))?;
    listed.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(listed)
}

fn is_hidden(name: &OsString) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    ["png", "jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolder")
            .field("root", &self.root)
            .field("len", &self.files.len())
            .field("classes", &self.classes.len())
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}
