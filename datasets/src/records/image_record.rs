//! What MXNet's `im2rec` puts into a record: labels, numbers, and the bytes of an image file.
//!
//! ```text
//! u32 flag | f32 label | u64 id | u64 id2 | flag labels, f32 each | image
//! ```
//!
//! With a flag of 0 the image has one label, which is in the header.

use crate::{
    error::{Error, Result},
    records::record::Record,
};

/// Bytes of the header.
const HEADER: usize = 24;

/// The record of an image as MXNet's `im2rec` writes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRecord<'a> {
    /// The labels. There is at least one.
    pub labels: Vec<f32>,
    /// The number of the image in its list.
    pub id: u64,
    /// The second number, usually 0.
    pub id2: u64,
    /// The bytes of the image file, for [`ImagePipeline::tensor`](crate::ImagePipeline::tensor).
    pub image: &'a [u8],
}

impl<'a> ImageRecord<'a> {
    /// The image in a record.
    ///
    /// # Errors
    /// A record that is shorter than its header says.
    pub fn from_record(record: &'a Record) -> Result<Self> {
        let short = || {
            let len = record.data().len();
            Error::custom(format!(
                "{len} bytes are no image record: it is shorter than its header says"
            ))
        };
        let (header, rest) = record.data().split_first_chunk::<HEADER>().ok_or_else(short)?;
        let words = header.as_chunks::<4>().0;
        let number = |at: usize| {
            u64::from(u32::from_le_bytes(words[at]))
                | u64::from(u32::from_le_bytes(words[at + 1])) << 32
        };
        let flag = u32::from_le_bytes(words[0]) as usize;
        let (labels, image) = rest.split_at_checked(flag.saturating_mul(4)).ok_or_else(short)?;
        let labels = match flag {
            0 => vec![f32::from_le_bytes(words[1])],
            _ => labels.as_chunks::<4>().0.iter().map(|&label| f32::from_le_bytes(label)).collect(),
        };
        Ok(Self { labels, id: number(2), id2: number(4), image })
    }

    /// The number of the class, which is the first label.
    ///
    /// # Errors
    /// A label that is no number of a class.
    pub fn class(&self) -> Result<u32> {
        let label = self.labels.first().copied().unwrap_or(f32::NAN);
        let class = label as u32;
        // f32 has all whole numbers up to 2^24.
        if class as f32 == label && class <= 1 << 24 {
            return Ok(class);
        }
        Err(Error::custom(format!("the label {label} is not the number of a class")))
    }
}
