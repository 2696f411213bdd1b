//! The images below the folders of classes, in the order of torchvision's `ImageFolder`.
//!
//! torchvision sorts the folders below a class by their paths, and the files of each by their names. The
//! order does not depend on the file system, so all ranks number the files alike. A file is an image that
//! is read, is counted, or is an error: a picture that nobody reads would be missed.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    decoded_image::is_image,
    error::{DataFault, Error, Result},
};

/// What is below a folder of images.
#[derive(Debug, Default)]
pub(crate) struct FolderListing {
    /// The class of each image by its number, and its path below the folder of the class.
    pub(crate) images: Vec<(u32, OsString)>,
    /// The number of files that are no pictures, and of hidden files and folders.
    pub(crate) left_out: usize,
    /// The number of pictures that are not read.
    pub(crate) unread: usize,
    /// The first of them.
    pub(crate) first_unread: Option<PathBuf>,
}

/// The endings of the files that are read, in lower case.
const READ: [&str; 3] = ["jpeg", "jpg", "png"];

/// Endings of pictures that are not read, in lower case.
const UNREAD: [&str; 41] = [
    "apng", "arw", "avif", "bmp", "cr2", "cr3", "dcm", "dds", "dib", "dng", "exr", "gif", "hdr",
    "heic", "heif", "ico", "j2k", "jfif", "jif", "jp2", "jpe", "jpf", "jpx", "jxl", "nef", "orf",
    "pbm", "pcx", "pfm", "pgm", "pnm", "ppm", "psd", "qoi", "rw2", "svg", "tga", "tif", "tiff",
    "webp", "xpm",
];

impl FolderListing {
    /// The names of the folders of classes, in alphabetical order, and the files beside them.
    pub(crate) fn classes(root: &Path) -> Result<(Vec<String>, Self)> {
        let (mut names, mut found) = (Vec::new(), Self::default());
        for name in names_in(root)? {
            let path = root.join(&name);
            if is_hidden(&name) {
                found.left_out += 1;
            } else if state(&path)?.is_dir() {
                names.push(name.into_string().map_err(|_| Error::no_text(path))?);
            } else {
                found.leave_out(path)?;
            }
        }
        if names.is_empty() {
            let what = "no folders in it; each class needs a folder with its images";
            return Err(DataFault::Missing.at(root, what));
        }
        Ok((names, found))
    }

    /// Adds the images of a class.
    pub(crate) fn add_class(&mut self, class: u32, root: &Path, name: &str) -> Result<()> {
        let mut above = vec![state(root)?];
        // The path of the folder below that of the class, as a text: `a-b` comes before `a/b`.
        let mut images: Vec<(OsString, OsString)> = Vec::new();
        self.walk(&root.join(name), Path::new(""), &mut above, &mut images)?;
        images.sort_unstable();
        let path = |(folder, name)| PathBuf::from(folder).join::<OsString>(name).into_os_string();
        self.images.extend(images.into_iter().map(|image| (class, path(image))));
        Ok(())
    }

    /// Lists a folder that has this path below the folder of its class. `above` are the folders that lead
    /// to it.
    fn walk(
        &mut self,
        folder: &Path,
        below_class: &Path,
        above: &mut Vec<Metadata>,
        images: &mut Vec<(OsString, OsString)>,
    ) -> Result<()> {
        let own = state(folder)?;
        if above.iter().any(|other| (other.dev(), other.ino()) == (own.dev(), own.ino())) {
            let what = "a link to a folder that contains it, so the images have no end: delete it";
            return Err(DataFault::Unsupported.at(folder, what));
        }
        above.push(own);
        for name in names_in(folder)? {
            let path = folder.join(&name);
            if is_hidden(&name) {
                self.left_out += 1;
                continue;
            }
            let state = state(&path)?;
            if state.is_dir() {
                self.walk(&path, &below_class.join(&name), above, images)?;
            } else if !ends_in(&path, &READ) {
                self.leave_out(path)?;
            } else if state.is_file() {
                images.push((below_class.into(), name));
            } else {
                return Err(Error::no_file(path));
            }
        }
        above.pop();
        Ok(())
    }

    /// Counts a file that is not read, as a picture or as another file.
    fn leave_out(&mut self, path: PathBuf) -> Result<()> {
        let is_picture = ends_in(&path, &READ) || ends_in(&path, &UNREAD);
        if is_picture || path.extension().is_none() && begins_as_picture(&path)? {
            self.unread += 1;
            self.first_unread.get_or_insert(path);
        } else {
            self.left_out += 1;
        }
        Ok(())
    }
}

/// The names in a folder, in their order.
pub(crate) fn names_in(folder: &Path) -> Result<Vec<OsString>> {
    let listed = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
    let mut names: Vec<OsString> = listed.map_err(Error::io("list", folder))?;
    names.sort_unstable();
    Ok(names)
}

/// What is at a path, at the end of all links.
pub(crate) fn state(path: &Path) -> Result<Metadata> {
    fs::metadata(path).map_err(|source| {
        let is_link = fs::symlink_metadata(path).is_ok_and(|link| link.is_symlink());
        if is_link {
            let what = format!("a link that cannot be followed ({source}): repair or delete it");
            DataFault::Missing.at(path, what)
        } else {
            Error::io("find", path)(source)
        }
    })
}

pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn ends_in(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().unwrap_or_default();
    endings.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// Whether a file, whose name says nothing, begins as a picture does.
fn begins_as_picture(path: &Path) -> Result<bool> {
    if !state(path)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    file.take(16).read_to_end(&mut start).map_err(Error::io("read", path))?;
    Ok(is_image(&start))
}
