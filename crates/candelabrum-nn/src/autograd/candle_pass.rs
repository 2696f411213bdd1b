//! What this crate relies on in candle's backward pass, tried once in each process.
//!
//! candle promises neither, so a later version of it may differ:
//!
//! - The pass calls an operation's backward after those of all operations that use its result, each once, and in the
//!   middle of the pass. So a hook is called when the gradient of its parameter is complete.
//! - An operation may give no gradient for an operand that is a variable. So a gradient may go to its bucket, and
//!   not to candle.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, Device, Layout, Result as CandleResult, Shape, Tensor, Var,
};

use crate::{Error, Result};

/// The calls of backward passes that the pass below must make, in this order.
const EXPECTED: [&str; 4] = ["second use", "first use", "hook", "end"];

/// Tries it, the first time in this process.
///
/// # Errors
/// [`Error::CandlePass`].
pub(crate) fn check() -> Result<()> {
    // Every operation of a graph asks, so only the answer is kept.
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    match FAULT.get_or_init(fault) {
        None => Ok(()),
        Some(what) => Err(Error::CandlePass { what: what.clone() }),
    }
}

/// What is not as it must be.
fn fault() -> Option<String> {
    match calls() {
        Ok(calls) if calls == EXPECTED => None,
        Ok(calls) => Some(format!("the order {calls:?}")),
        Err(error) => Some(format!("the error `{error}`")),
    }
}

/// A parameter with a hook and two uses, as fused operations use it.
fn calls() -> CandleResult<Vec<&'static str>> {
    let log = PassLog::default();
    let parameter = Var::new(&[1_f32], &Device::Cpu)?;
    let token = parameter.apply_op1(PassHook(log.clone()))?;
    let xs = Tensor::new(&[1_f32], &Device::Cpu)?;
    let first = xs.apply_op2(&token, ParamUse("first use", log.clone()))?;
    let second = first.apply_op2(&token, ParamUse("second use", log.clone()))?;
    let gradients = second.sum_all()?.backward()?;
    // No operation has given a gradient of the parameter.
    log.note(if gradients.get(&parameter).is_none() { "end" } else { "a gradient" });
    Ok(log.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

#[derive(Clone, Default)]
struct PassLog(Arc<Mutex<Vec<&'static str>>>);

impl PassLog {
    fn note(&self, call: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

struct PassHook(PassLog);

impl CustomOp1 for PassHook {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> CandleResult<Option<Tensor>> {
        self.0.note("hook");
        Ok(None)
    }
}

struct ParamUse(&'static str, PassLog);

impl CustomOp2 for ParamUse {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        Ok((xs.clone(), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        token: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>)> {
        self.1.note(self.0);
        Ok((Some(gradient.clone()), Some(token.detach())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_candle_makes_the_calls_in_the_order_that_hooks_need() {
        assert_eq!(calls().unwrap(), EXPECTED);
        check().unwrap();
    }
}
