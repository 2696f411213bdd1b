//! CIFAR-10 and CIFAR-100 in their binary version, from the archive or from the files in it.
//!
//! Krizhevsky (2009), "Learning multiple layers of features from tiny images": 50,000 training and 10,000
//! test images of 32 x 32 in color. A record is one byte for each label and 3,072 bytes of pixels: the
//! red, green and blue planes. CIFAR-100 has two labels, the coarse one of 20 and the fine one of 100. The
//! files have no header, so the number of their records follows from their size.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;
use tar::Archive;

use crate::{
    error::{DataFault, Error, Result},
    idx::is_gzip,
    image_dataset::{ImageDataset, wrong_label},
};

/// Height and width of an image.
pub(crate) const SIDE: usize = 32;

const PIXELS: usize = 3 * SIDE * SIDE;

/// The maximum number of bytes of a file, of which CIFAR-100's largest has 153,700,000.
const MOST_BYTES: u64 = 1 << 30;

/// The files of one of the two sets.
#[derive(Debug)]
pub(crate) struct CifarFiles {
    /// The name of the archive without `.gz`.
    pub(crate) archive: &'static str,
    /// The folder in the archive.
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static [&'static str],
    /// The classes of each label of a record. The last label is the one for training.
    labels: &'static [usize],
}

pub(crate) const CIFAR_10: CifarFiles = CifarFiles {
    archive: "cifar-10-binary.tar",
    folder: "cifar-10-batches-bin",
    train: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
    ],
    test: &["test_batch.bin"],
    labels: &[10],
};

pub(crate) const CIFAR_100: CifarFiles = CifarFiles {
    archive: "cifar-100-binary.tar",
    folder: "cifar-100-binary",
    train: &["train.bin"],
    test: &["test.bin"],
    labels: &[20, 100],
};

/// A place that has the files.
enum CifarLocation {
    /// A folder with the files themselves.
    Folder(PathBuf),
    Archive(PathBuf),
}

impl CifarFiles {
    /// The files that a directory has neither itself nor in the folder of the archive. None are missing if
    /// it has the archive.
    pub(crate) fn missing(&self, dir: &Path) -> Vec<&'static str> {
        match self.find(dir) {
            Some(_) => Vec::new(),
            None => self.files().filter(|name| !dir.join(name).exists()).collect(),
        }
    }

    /// The training and the test images in a directory.
    pub(crate) fn open(&self, dir: &Path) -> Result<[ImageDataset; 2]> {
        let parts = [self.train, self.test];
        match self.find(dir) {
            None => Err(self.not_in(dir)),
            Some(CifarLocation::Folder(folder)) => {
                let read = |names: &[&str]| {
                    let content = |name: &&str| {
                        let path = folder.join(name);
                        Ok((read_file(&path)?, path))
                    };
                    self.images(names.iter().map(content))
                };
                let [train, test] = parts.map(read);
                Ok([train?, test?])
            }
            Some(CifarLocation::Archive(archive)) => {
                let mut contents = self.unpacked(&archive)?;
                let mut read = |names: &[&str]| {
                    let content = |name: &&str| {
                        let path = archive.join(self.folder).join(name);
                        let content = contents.remove(*name).ok_or_else(|| {
                            DataFault::Missing.at(&path, "not in the archive, fetch it again")
                        });
                        Ok((content?, path))
                    };
                    self.images(names.iter().map(content))
                };
                let [train, test] = parts.map(&mut read);
                Ok([train?, test?])
            }
        }
    }

    /// A directory has neither the files nor the archive.
    pub(crate) fn not_in(&self, dir: &Path) -> Error {
        let (archive, missing) = (self.archive, self.missing(dir).join(", "));
        let what = format!("neither the archive {archive}.gz nor its files in it: no {missing}");
        DataFault::Missing.at(dir, what)
    }

    fn files(&self) -> impl Iterator<Item = &'static str> {
        self.train.iter().chain(self.test).copied()
    }

    /// Files come before the archive, which takes longer to read.
    fn find(&self, dir: &Path) -> Option<CifarLocation> {
        let is_whole = |folder: &PathBuf| self.files().all(|name| folder.join(name).exists());
        let folder = [dir.to_owned(), dir.join(self.folder)].into_iter().find(is_whole);
        let archive = || {
            let names = [self.archive.to_owned(), format!("{}.gz", self.archive)];
            names.map(|name| dir.join(name)).into_iter().find(|path| path.exists())
        };
        folder.map(CifarLocation::Folder).or_else(|| archive().map(CifarLocation::Archive))
    }

    /// The contents of the files in an archive, by their names.
    fn unpacked(&self, archive: &Path) -> Result<BTreeMap<&'static str, Vec<u8>>> {
        let damaged = |error: io::Error| {
            let what = format!("damaged or cut short ({error}), fetch the archive again");
            DataFault::Corrupt.at(archive, what)
        };
        let mut file = BufReader::new(File::open(archive).map_err(Error::io("open", archive))?);
        let gzipped = is_gzip(file.fill_buf().map_err(Error::io("read", archive))?);
        let reader: Box<dyn Read> =
            if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let mut contents = BTreeMap::new();
        for entry in Archive::new(reader).entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path().map_err(damaged)?.into_owned();
            let Some(name) = self.files().find(|name| path.ends_with(name)) else { continue };
            if entry.size() > MOST_BYTES {
                return Err(too_large(&archive.join(path), entry.size()));
            }
            let mut content = Vec::with_capacity(entry.size() as usize);
            entry.read_to_end(&mut content).map_err(damaged)?;
            contents.insert(name, content);
        }
        Ok(contents)
    }

    /// The images of files, one after the other.
    fn images(
        &self,
        files: impl Iterator<Item = Result<(Vec<u8>, PathBuf)>>,
    ) -> Result<ImageDataset> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for file in files {
            let (content, path) = file?;
            self.append(&content, &path, &mut pixels, &mut labels)?;
        }
        let classes = self.labels.last().copied().unwrap_or_default();
        ImageDataset::new(pixels, labels, [3, SIDE, SIDE], classes)
    }

    fn append(
        &self,
        content: &[u8],
        path: &Path,
        pixels: &mut Vec<u8>,
        labels: &mut Vec<u32>,
    ) -> Result<()> {
        let record = self.labels.len() + PIXELS;
        let (records, rest) = (content.len() / record, content.len() % record);
        if rest > 0 || records == 0 {
            let bytes = content.len();
            let what = format!(
                "record {records} has {rest} bytes where {record} are needed ({bytes} bytes in \
                 all): the file was cut short, fetch it again"
            );
            return Err(DataFault::CutShort.at(path, what));
        }
        pixels.reserve(records * PIXELS);
        for (index, record) in content.chunks_exact(record).enumerate() {
            let (own, image) = record.split_at(self.labels.len());
            let wrong =
                own.iter().zip(self.labels).find(|(label, most)| usize::from(**label) >= **most);
            if let Some((label, &classes)) = wrong {
                return Err(DataFault::Corrupt.at(path, wrong_label(label, index, classes)));
            }
            labels.extend(own.last().map(|&label| u32::from(label)));
            pixels.extend_from_slice(image);
        }
        Ok(())
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).map_err(Error::io("open", path))?;
    if !metadata.is_file() {
        return Err(Error::no_file(path));
    }
    if metadata.len() > MOST_BYTES {
        return Err(too_large(path, metadata.len()));
    }
    std::fs::read(path).map_err(Error::io("read", path))
}

fn too_large(path: &Path, bytes: u64) -> Error {
    let what = format!("{bytes} bytes, the limit is {MOST_BYTES}: not a file of CIFAR");
    DataFault::Unsupported.at(path, what)
}
