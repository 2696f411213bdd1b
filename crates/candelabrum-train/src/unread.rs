//! Options that a program has been given and does not read: they would have no effect, and nobody would know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_nn::ops::product_precision;
use candelabrum_nn::{Params, Recompute};
use candle_core::DType;

use crate::cli::Precision;
use crate::{Error, Result};

/// Whether a program has read an option. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadMark(Arc<AtomicBool>);

impl ReadMark {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An option that a program may have been given in vain.
#[derive(Clone, Debug)]
pub(crate) struct GivenOption {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// How a program reads it.
    pub(crate) how: &'static str,
    /// Whether this program has read it.
    pub(crate) read: ReadMark,
}

/// The options that a program may have been given in vain.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) options: Vec<GivenOption>,
    pub(crate) precision: Precision,
    pub(crate) recompute: Recompute,
}

impl Given {
    /// The options that the program has not read so far.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &GivenOption> {
        self.options.iter().filter(|option| !option.read.0.load(Ordering::Relaxed))
    }

    fn check_recompute(&self, params: &Params) -> Result<()> {
        let range = if self.recompute == Recompute::None {
            return Ok(());
        } else if params.recompute() != self.recompute {
            "left out, because this program does not read it: `args.make_optimizer(&params, world)` does"
        } else if !params.has_blocks() {
            "left out, because this program's model has no `candelabrum::nn::layers::Blocks`"
        } else {
            return Ok(());
        };
        let value = format!("{:?}", self.recompute).to_lowercase();
        Err(Error::option("--recompute", &value, range))
    }

    /// Refuses options that the program has not read before its training begins.
    pub(crate) fn check(&self, params: &Params) -> Result<()> {
        if let Some(GivenOption { name, value, how, .. }) = self.unread().next() {
            let range = format!("left out, because this program does not read it: {how}");
            return Err(Error::option(name, value, range));
        }
        self.check_recompute(params)?;
        if self.precision == Precision::default() {
            return Ok(());
        }
        let (wanted, found) = (self.precision.dtype(params.device()), params.dtype());
        let products = product_precision();
        let which = if wanted != found {
            format!("parameters are {}", found.as_str())
        } else if wanted == DType::F32 && self.precision.products() != products {
            format!("products are {products:?}")
        } else {
            return Ok(());
        };
        let range = format!(
            "left out, because this program's {which}: `args.precision.params(seed, device)` makes a store for this precision"
        );
        let value = format!("{:?}", self.precision).to_lowercase();
        Err(Error::option("--precision", &value, range))
    }
}
