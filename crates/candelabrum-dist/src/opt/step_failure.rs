//! The failure of a step on this rank, and how all ranks learn of it.
//!
//! A rank whose backward pass fails must still take part in the step. Otherwise the other ranks
//! would wait for it, or mistake its next step for this one. So it takes part with gradients that
//! make the step fail on every rank, and then sends the reason. The next step works again on all
//! ranks.

use std::fmt;

use candle_core::{DType, Tensor};

use super::context::StepContext;
use crate::{Error, Result};

/// The reason why the gradients must not be used, as far as this rank knows it.
#[derive(Clone, Debug)]
pub(super) enum StepFailure {
    /// This rank's loss is not finite. Its gradients may be finite nevertheless.
    Loss,
    /// A gradient is not finite, on this rank or on another one.
    Gradient(BadGradient),
    /// This error prevented this rank's gradients.
    Failed(Error),
}

/// A number of a gradient that is not finite. Lower ranks come first, and then earlier places in the buckets,
/// because their order is that of the backward pass, and a bad number spreads to all gradients after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BadGradient {
    /// The rank in the group.
    pub(super) rank: usize,
    pub(super) bucket: usize,
    pub(super) position: usize,
}

impl StepFailure {
    /// Whether the numbers of the buckets may not show the failure, so that they must be overwritten.
    pub(super) fn is_hidden(&self) -> bool {
        matches!(self, Self::Loss | Self::Failed(_))
    }
}

/// Returns an error if a loss is no scalar. Its gradients would be those of the sum of its elements.
pub(super) fn check_scalar(loss: &Tensor) -> Result<()> {
    if loss.rank() == 0 {
        return Ok(());
    }
    Err(candle_core::Error::Msg(format!(
        "the loss has the shape {:?}, expected a scalar, []: take its mean or its sum",
        loss.shape()
    ))
    .into())
}

/// Whether a loss is finite. Waits for a GPU.
pub(super) fn is_finite(loss: &Tensor) -> Result<bool> {
    check_scalar(loss)?;
    Ok(loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_finite())
}

/// The error of a step with a failure on some rank. Every rank of the group calls it. A rank with an
/// error of its own gets that error. Every other rank gets the failure of the first rank that has
/// one; `None` if no rank has one.
pub(super) fn spread(
    context: &StepContext,
    failure: Option<&StepFailure>,
) -> Result<Option<Error>> {
    let group = &context.ranks.all;
    let own = failure.map(|failure| FailureReport::new(failure, context).to_string());
    let texts = group.all_gather_text(&own.unwrap_or_default())?;
    if let Some(StepFailure::Failed(error)) = failure {
        return Ok(Some(error.clone()));
    }
    let texts = texts.iter().filter(|text| !text.is_empty());
    let reports: Option<Vec<_>> = texts.map(|text| FailureReport::read(text)).collect();
    let what = || "a fault that cannot be read".to_owned();
    let reports = reports.ok_or_else(|| Error::Protocol { what: what() })?;
    Ok(reports.into_iter().min().map(|FailureReport { rank, kind, what, .. }| {
        let rank = group.ranks().get(rank).copied().unwrap_or(rank);
        match kind {
            FailureReport::ERROR => Error::PeerFailed { peer: rank, message: what },
            _ => Error::NotFinite { what, rank },
        }
    }))
}

/// A failure, as the ranks exchange it. The lowest report counts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailureReport {
    /// The rank with the failure, in the group.
    rank: usize,
    /// A rank with an error or a bad loss sends NaN, which other ranks may report as its bad gradient. So
    /// a bad gradient has the highest number.
    kind: u8,
    /// The place of a bad number.
    bucket: usize,
    position: usize,
    /// What failed: an error, or what is not finite.
    what: String,
}

impl FailureReport {
    const ERROR: u8 = 0;
    const LOSS: u8 = 1;
    const GRADIENT: u8 = 2;

    fn new(failure: &StepFailure, context: &StepContext) -> Self {
        let rank = context.ranks.all.rank();
        let own = |kind, what| Self { rank, kind, bucket: 0, position: 0, what };
        match failure {
            StepFailure::Failed(error) => own(Self::ERROR, error.to_string()),
            StepFailure::Loss => own(Self::LOSS, "the loss".to_owned()),
            &StepFailure::Gradient(BadGradient { rank, bucket, position }) => {
                let what = format!("the gradient of `{}`", context.name_at(bucket, position));
                Self { rank, kind: Self::GRADIENT, bucket, position, what }
            }
        }
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let mut number = || words.next()?.parse::<usize>().ok();
        let (rank, kind, bucket, position) = (number()?, number()?, number()?, number()?);
        let what = words.next()?.to_owned();
        Some(Self { rank, kind: kind.try_into().ok()?, bucket, position, what })
    }
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, kind, bucket, position, what } = self;
        write!(f, "{rank} {kind} {bucket} {position} {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let what = "an error of two lines,\nwith  spaces ".to_owned();
        let report =
            FailureReport { rank: 3, kind: FailureReport::ERROR, bucket: 1, position: 20, what };
        assert_eq!(FailureReport::read(&report.to_string()), Some(report));
        for text in ["", "3 0 1 20", "3 0 1 x what", "-1 0 1 20 what", "3 256 1 20 what"] {
            assert_eq!(FailureReport::read(text), None, "{text}");
        }
    }
}
