//! The fault of a step on this rank, and how all ranks learn of it.
//!
//! A rank whose backward pass fails must still take part in the step. Otherwise the other ranks
//! would wait for it, or mistake its next step for this one. So it takes part with gradients that
//! make the step fail on every rank, and then sends the reason. The next step works again on all
//! ranks.

use candelabrum_nn::Param;
use candle_core::{DType, Tensor};

use crate::comm::Group;
use crate::{Error, Result};

/// The reason why this rank's gradients must not be used.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The loss is not finite. Its gradients may be finite nevertheless.
    Loss,
    /// The gradient of this parameter, the first one in the model's order, is not finite.
    Gradient(usize),
    /// This error prevented the gradients.
    Failed(Error),
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
pub(super) fn spread(
    group: &Group,
    fault: Option<&Fault>,
    params: &[Param],
) -> Result<Option<Error>> {
    // The first character is `!` for an error and `#` for a number that is not finite.
    let own = match fault {
        None => String::new(),
        Some(Fault::Loss) => "#the loss".to_owned(),
        Some(Fault::Gradient(param)) => format!("#the gradient of `{}`", params[*param].name()),
        Some(Fault::Failed(error)) => format!("!{error}"),
    };
    let found = group.all_gather_text(&own)?;
    if let Some(Fault::Failed(error)) = fault {
        return Ok(Some(error.clone()));
    }
    let first = found.iter().enumerate().find(|(_, what)| !what.is_empty());
    Ok(first.map(|(index, what)| {
        let rank = group.ranks()[index];
        match what.strip_prefix('!') {
            Some(message) => Error::PeerFailed { peer: rank, message: message.to_owned() },
            None => Error::NotFinite { what: what.trim_start_matches('#').to_owned(), rank },
        }
    }))
}
