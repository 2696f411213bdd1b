//! What can be wrong with encoded images and with folders of them.

use std::{io, path::PathBuf};

/// An error of encoded images.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The bytes are no image that can be decoded.
    #[error("not a readable image: {source}")]
    Decode {
        /// The decoder's error.
        source: image::ImageError,
    },
    /// A file of a folder is no image that can be decoded.
    #[error("{}: not a readable image: {source}: repair or delete the file, or skip corrupt files", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: image::ImageError,
    },
    /// None of the files of a folder can be decoded.
    #[error("{}: none of the {files} files is a readable image, the first one because: {first}", root.display())]
    AllCorrupt {
        /// The folder.
        root: PathBuf,
        /// The number of files.
        files: usize,
        /// What is wrong with the first one.
        first: String,
    },
    /// Images cannot have the chosen size.
    #[error("images of {height} x {width} pixels: both must be from 1 to {most}")]
    Size {
        /// The rows of pixels.
        height: usize,
        /// The columns of pixels.
        width: usize,
        /// The most rows or columns.
        most: usize,
    },
    /// The shorter side is shorter than the window that is cut out.
    #[error(
        "a shorter side of {shorter} pixels has no window of {height} x {width}: choose at least the longer of both"
    )]
    Shorter {
        /// The length of the shorter side.
        shorter: usize,
        /// The rows of the window.
        height: usize,
        /// The columns of the window.
        width: usize,
    },
    /// The ranges of a random crop are not ranges of what they measure.
    #[error(
        "a crop with scales {scale:?} and ratios {ratio:?}: both need 0 < from <= to, and scales at most 1"
    )]
    Crop {
        /// The range of the shares of the area.
        scale: [f64; 2],
        /// The range of the ratios of width to height.
        ratio: [f64; 2],
    },
    /// A folder has no folders of classes.
    #[error("{}: no folders in it; each class needs a folder with its images", root.display())]
    NoClasses {
        /// The folder.
        root: PathBuf,
    },
    /// The folder of a class that is not among the given ones.
    #[error("{}: not one of the {classes} classes: open it with those of the folder for training", folder.display())]
    UnknownClass {
        /// The folder.
        folder: PathBuf,
        /// The number of classes given.
        classes: usize,
    },
    /// Pictures would be left out.
    #[error(
        "{}: {unread} picture(s) would be left out, the first one is {}: PNG and JPEG files in the folders \
         of classes are read, so convert, rename or move the others, or set FolderOptions::ignore_others",
        root.display(),
        first.display()
    )]
    Unread {
        /// The folder.
        root: PathBuf,
        /// The number of pictures.
        unread: usize,
        /// The first of them.
        first: PathBuf,
    },
    /// A link leads to nothing.
    #[error("{}: a link that cannot be followed ({source}): repair or delete it", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A link leads to a folder in which it is.
    #[error("{}: a link to a folder that contains it, so the images have no end: delete it", path.display())]
    Loop {
        /// The link.
        path: PathBuf,
    },
    /// The folder of a class has no images.
    #[error(
        "{}: no files with the ending png, jpg or jpeg in the folder of this class or below it",
        folder.display()
    )]
    EmptyClass {
        /// The folder.
        folder: PathBuf,
    },
}
