//! The fault of a step on this rank, and how all ranks learn of it.
//!
//! A rank whose backward pass fails must still take part in the step. Otherwise the other ranks
//! would wait for it, or mistake its next step for this one. So it takes part with gradients that
//! make the step fail on every rank, and then sends the reason. The next step works again on all
//! ranks.

use candle_core::{DType, Tensor};

use super::context::StepContext;
use crate::{Error, Result};

/// The reason why the gradients must not be used, as far as this rank knows it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// This rank's loss is not finite. Its gradients may be finite nevertheless.
    Loss,
    /// A gradient is not finite, on this rank or on another one.
    Gradient(BadGradient),
    /// This error prevented this rank's gradients.
    Failed(Error),
}

/// A number of a gradient that is not finite. The order prefers lower ranks, and units that are complete
/// earlier in the backward pass: there the bad number arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BadGradient {
    /// The rank in the group.
    pub(super) rank: usize,
    pub(super) unit: usize,
    pub(super) position: usize,
}

impl Fault {
    /// Whether the numbers of the units may not show the fault, so that they must be overwritten.
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

/// The error of a step with a fault on some rank. Every rank of the group calls it. A rank with an
/// error of its own gets that error. Every other rank gets the fault of the first rank that has
/// one; `None` if no rank has one.
pub(super) fn spread(context: &StepContext, fault: Option<&Fault>) -> Result<Option<Error>> {
    let group = &context.group;
    let found = group.all_gather_text(&fault.map_or_else(String::new, |f| report(context, f)))?;
    if let Some(Fault::Failed(error)) = fault {
        return Ok(Some(error.clone()));
    }
    let reports = found.iter().filter(|report| !report.is_empty());
    let reports = reports.map(|report| read(report)).collect::<Option<Vec<_>>>();
    let what = || "a fault that cannot be read".to_owned();
    let reports = reports.ok_or_else(|| Error::Protocol { what: what() })?;
    let first = reports.into_iter().min_by_key(|&(rank, kind, _)| (rank, kind));
    Ok(first.map(|(rank, kind, what)| {
        let (rank, what) = (group.ranks().get(rank).copied().unwrap_or(rank), what.to_owned());
        match kind {
            ERROR => Error::PeerFailed { peer: rank, message: what },
            _ => Error::NotFinite { what, rank },
        }
    }))
}

// The kinds of faults. A rank with an error or with a bad loss sends NaN, which other ranks may report as
// its bad gradient. Of the faults of a rank, the kind with the lowest number counts.
const ERROR: &str = "0";
const LOSS: &str = "1";
const GRADIENT: &str = "2";

/// The rank with the fault, the kind and a description.
fn report(context: &StepContext, fault: &Fault) -> String {
    let own = context.group.rank();
    match fault {
        Fault::Loss => format!("{own} {LOSS} the loss"),
        Fault::Gradient(BadGradient { rank, unit, position }) => {
            let name = context.name_at(*unit, *position);
            format!("{rank} {GRADIENT} the gradient of `{name}`")
        }
        Fault::Failed(error) => format!("{own} {ERROR} {error}"),
    }
}

fn read(report: &str) -> Option<(usize, &str, &str)> {
    let (rank, rest) = report.split_once(' ')?;
    let (kind, what) = rest.split_once(' ')?;
    Some((rank.parse().ok()?, kind, what))
}
