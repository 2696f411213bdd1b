//! An operation that a rank announces before it starts it.

use std::sync::Arc;

use super::collective::CollectiveHeader;
use super::payload::tag;
use super::{Collective, ElementType, Label, ReduceOp};

/// An operation on numbers in a GPU's memory that a rank will start, see
/// [`Communicator::announce`](super::Communicator::announce).
#[derive(Clone, Debug)]
pub struct Announcement {
    op: Collective,
    element: ElementType,
    len: usize,
    label: Option<Label>,
    parts: Option<Arc<[usize]>>,
    step: u32,
}

impl Announcement {
    /// An all-reduce of `len` elements.
    pub fn all_reduce(op: ReduceOp, element: ElementType, len: usize) -> Self {
        Self { op: Collective::AllReduce(op), element, len, label: None, parts: None, step: 0 }
    }

    /// A reduce-scatter into parts of these lengths ([`Collective::ReduceScatterV`]).
    pub fn reduce_scatter_v(
        op: ReduceOp,
        element: ElementType,
        parts: impl Into<Arc<[usize]>>,
    ) -> Self {
        let parts = parts.into();
        let len = parts.iter().sum();
        let op = Collective::ReduceScatterV(op);
        Self { op, element, len, label: None, parts: Some(parts), step: 0 }
    }

    /// Sets the label that the payload will have.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<Label>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the training step that the payload will have.
    #[must_use]
    pub(crate) fn of_step(mut self, step: u64) -> Self {
        self.step = step as u32;
        self
    }

    /// Its header as the collective number `sequence` of its group.
    pub(super) fn header(&self, sequence: u64) -> CollectiveHeader {
        let &Self { op, element, len, ref label, ref parts, step } = self;
        let tag = tag(label.as_ref(), parts.as_deref(), step);
        CollectiveHeader { sequence, op, element, len, tag, refused: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Payload;

    #[test]
    fn an_announcement_has_the_header_of_the_operation() {
        let element = ElementType::F16;
        let announced = Announcement::all_reduce(ReduceOp::Mean, element, 5);
        let announced = announced.labelled("bucket 2").of_step(7);
        let payload = || Payload::zeros(element, 5).labelled("bucket 2").of_step(7);
        let mean = Collective::AllReduce(ReduceOp::Mean);
        assert_eq!(announced.header(3), CollectiveHeader::new(3, mean, &payload()));
        for other in [payload().of_step(8), payload().labelled("bucket 3")] {
            assert_ne!(announced.header(3), CollectiveHeader::new(3, mean, &other));
        }
        let announced = Announcement::reduce_scatter_v(ReduceOp::Mean, element, [2, 3]);
        let scatter = Collective::ReduceScatterV(ReduceOp::Mean);
        let parts = |parts: [usize; 2]| Payload::zeros(element, 5).with_parts(parts).expect("5");
        assert_eq!(announced.header(3), CollectiveHeader::new(3, scatter, &parts([2, 3])));
        assert_ne!(announced.header(3), CollectiveHeader::new(3, scatter, &parts([3, 2])));
    }
}
