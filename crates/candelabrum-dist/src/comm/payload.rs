//! The payload of a collective. At any time either the caller or the communicator owns it.
//!
//! Starting a collective moves its [`Payload`] to the communicator, and waiting moves it back, so
//! no caller can access numbers that are in flight.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use candelabrum_memory::{BadNumber, Element, ElementType, FlatTensor};

use super::ready::{self, StreamPoint};
use crate::{Error, Result};

/// Numbers of one type ([`FlatTensor`]) and their attributes in a collective: their division into parts,
/// their sender, their label, and the search for numbers that are not finite.
pub struct Payload {
    flat: FlatTensor,
    /// The lengths of the parts, which add up to the payload's length.
    parts: Option<Box<[usize]>>,
    source: Option<usize>,
    label: Option<Label>,
    step: u32,
    /// Whether the all-reduce of this payload searches for numbers that are not finite.
    searched: bool,
    bad_number: Option<BadNumber>,
    /// The point of a GPU's stream at which the numbers are complete, if they are on a GPU and an
    /// operation on them has been started.
    pub(super) ready: Option<StreamPoint>,
}

/// The content of a payload, in words: `bucket 2: conv1.weight`. A clone is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    text: Arc<str>,
    digest: u32,
}

impl Label {
    /// A label with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let digest = digest(text.bytes());
        Self { text, digest }
    }

    /// A label with this text that differs from every label with the same text and another
    /// `series`.
    pub(crate) fn of_series(text: impl Into<Arc<str>>, series: u64) -> Self {
        let text = text.into();
        let digest = digest(text.bytes().chain(series.to_le_bytes()));
        Self { text, digest }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl<T: Into<Arc<str>>> From<T> for Label {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// FNV-1a of 32 bits (Fowler, Noll, Vo), which is enough to distinguish the labels of a program.
fn digest(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl From<FlatTensor> for Payload {
    fn from(flat: FlatTensor) -> Self {
        Self {
            flat,
            parts: None,
            source: None,
            label: None,
            step: 0,
            searched: false,
            bad_number: None,
            ready: None,
        }
    }
}

impl Payload {
    /// Zeros on the heap.
    pub fn zeros(element: ElementType, len: usize) -> Self {
        FlatTensor::zeros(element, len).into()
    }

    /// A copy of `values` on the heap.
    pub fn from_slice<T: Element>(values: &[T]) -> Self {
        FlatTensor::from_slice(values).into()
    }

    /// No numbers.
    pub(crate) fn empty() -> Self {
        Self::zeros(ElementType::U8, 0)
    }

    /// The numbers without the attributes.
    pub fn into_flat(self) -> FlatTensor {
        self.flat
    }

    /// The numbers.
    ///
    /// # Errors
    /// `T` is not the type of the numbers, or the numbers are on a device.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        Ok(self.flat.as_slice()?)
    }

    /// The numbers, mutable.
    ///
    /// # Errors
    /// As for [`Self::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        Ok(self.flat.as_mut_slice()?)
    }

    /// A copy of the numbers.
    ///
    /// # Errors
    /// As for [`Self::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.flat.to_vec()?)
    }

    /// Cuts the payload into parts of these lengths, one per rank, for [`Collective::AllToAllV`],
    /// [`Collective::ReduceScatterV`] and [`Collective::AllGatherInPlace`].
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths do not add up to the payload's length.
    ///
    /// [`Collective::AllToAllV`]: super::Collective::AllToAllV
    /// [`Collective::ReduceScatterV`]: super::Collective::ReduceScatterV
    /// [`Collective::AllGatherInPlace`]: super::Collective::AllGatherInPlace
    pub fn with_parts(mut self, parts: impl Into<Box<[usize]>>) -> Result<Self> {
        let parts = parts.into();
        let sum = parts.iter().try_fold(0_usize, |sum, &part| sum.checked_add(part));
        if sum != Some(self.len()) {
            let (expected, got) = (self.len(), sum.unwrap_or(usize::MAX));
            return Err(Error::Length { op: "the parts of a payload", expected, got });
        }
        self.parts = Some(parts);
        Ok(self)
    }

    /// The lengths of its parts, one per rank. They are set by [`Self::with_parts`], and in the
    /// result of an operation whose ranks send different amounts.
    pub fn parts(&self) -> Option<&[usize]> {
        self.parts.as_deref()
    }

    /// The sender of a message that any rank could have sent.
    pub fn source(&self) -> Option<usize> {
        self.source
    }

    /// Sets the sender.
    pub(crate) fn with_source(mut self, source: usize) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the content, for messages about waits and failures. The label must be the same on every
    /// rank: ranks that run a collective with different labels get an error instead of each other's
    /// numbers.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<Label>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The content, if it was set.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Sets the training step, which the ranks compare as they compare the label.
    #[must_use]
    pub(crate) fn of_step(mut self, step: u64) -> Self {
        self.step = step as u32;
        self
    }

    /// Asks an all-reduce to search for numbers that are not finite, if the communicator
    /// [can](super::Communicator::finds_bad_numbers). All ranks ask, or none does.
    #[must_use]
    pub(crate) fn searched(mut self) -> Self {
        self.searched = true;
        self
    }

    /// Whether the all-reduce searches.
    pub(super) fn is_searched(&self) -> bool {
        self.searched
    }

    /// A number that was not finite before the all-reduce, and the rank that had it. It is the first
    /// one that this rank has found: each rank looks at some of the numbers of all ranks, or at all of
    /// its own. `None` if it has found none.
    pub(crate) fn bad_number(&self) -> Option<BadNumber> {
        self.bad_number
    }

    /// Sets what the search has found.
    pub(super) fn with_bad_number(mut self, found: Option<BadNumber>) -> Self {
        self.bad_number = found;
        self
    }

    /// Notes the point that the work on numbers in a GPU's memory has reached now. The operation
    /// then waits for this work, and not for work that the stream is given later.
    pub(super) fn mark_ready(&mut self) -> Result<()> {
        if self.is_on_device() {
            self.ready = ready::ready(&mut self.flat)?;
        }
        Ok(())
    }

    /// Returns an error if work on the numbers is being recorded: it would run later, and not before
    /// an operation that starts now.
    pub(super) fn check_not_recorded(&self) -> Result<()> {
        if self.is_on_device() { ready::check_not_recorded(&self.flat) } else { Ok(()) }
    }

    /// Label and step in one number, which the ranks compare. With `common_parts` also the lengths of the parts, in an
    /// operation in which all ranks have the same ones.
    pub(crate) fn tag(&self, common_parts: bool) -> u64 {
        let parts = self.parts().filter(|_| common_parts);
        tag(self.label.as_ref(), parts, self.step)
    }

    /// The range of bytes of each part.
    pub(super) fn part_ranges(&self) -> Vec<Range<usize>> {
        part_ranges(self.parts().unwrap_or_default(), self.element_type().size())
    }
}

/// The ranges of consecutive parts of `lens` elements, of `size` bytes each.
pub(super) fn part_ranges(lens: &[usize], size: usize) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |&len: &usize| {
        let start = end;
        end += len * size;
        start..end
    };
    lens.iter().map(range).collect()
}

/// The number by which ranks compare a label, the common lengths of parts and a step.
pub(super) fn tag(label: Option<&Label>, parts: Option<&[usize]>, step: u32) -> u64 {
    let label = label.map_or(0, |label| label.digest);
    let lens = parts.unwrap_or_default().iter().flat_map(|&len| (len as u64).to_le_bytes());
    let parts = parts.map_or(0, |_| digest(lens));
    u64::from(label ^ parts) << 32 | u64::from(step)
}

impl Deref for Payload {
    type Target = FlatTensor;

    fn deref(&self) -> &FlatTensor {
        &self.flat
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut FlatTensor {
        &mut self.flat
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} × {})", self.len(), self.element_type())
    }
}
