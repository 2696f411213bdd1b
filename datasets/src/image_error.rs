//! Why a file is no image that can be trained on.

/// Why the bytes of a file are no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes are neither a PNG nor a JPEG.
    #[error("the bytes are neither a PNG nor a JPEG")]
    Format,
    /// A PNG that is damaged, or of a kind that its decoder does not have.
    #[error("the PNG cannot be decoded: {0}")]
    Png(#[from] png::DecodingError),
    /// A JPEG that is damaged, or of a kind that its decoder does not have.
    #[error("the JPEG cannot be decoded: {0}")]
    Jpeg(String),
    /// The end of a JPEG has not arrived.
    #[error("the file ends before the image does: the JPEG was cut short")]
    CutShort,
    /// The image is too large.
    #[error("an image of {width} x {height} pixels needs more than 512 MiB of memory")]
    TooLarge {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
}
