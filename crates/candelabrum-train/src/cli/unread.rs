//! Options that a program has been given and does not read: they would have no effect, and nobody would know.

use std::path::Path;

use candelabrum_datasets::DatasetKind;
use candelabrum_nn::ops::product_precision;
use candelabrum_nn::{Params, Recompute};
use candle_core::DType;
use clap::ValueEnum;

use super::args::{Augment, TrainArgs};
use super::precision::Precision;
use crate::{Error, Result};

/// An option that a program was given in vain: its name, its value, and how a program reads it.
pub(super) type UnreadOption = (&'static str, String, &'static str);

const AUGMENTED: &str =
    "`args.augmented(&images)` gives images with these changes, `args.augment()` the option";
const LOADED: &str = "`load_data(&args, world)` reads the digits that these options choose, `args.data_dir()` and `args.dataset()` the options";

impl TrainArgs {
    /// The options that the program was given and has not read so far.
    pub(super) fn unread(&self) -> impl Iterator<Item = UnreadOption> {
        let Self { augment, data_dir, dataset, reads, .. } = self;
        let dir = data_dir.as_deref().unwrap_or(Path::new("")).display().to_string();
        let (changes, set) = (name_of(augment), dataset.to_string());
        let options = [
            (*augment != Augment::None, &reads.augment, ("--augment", changes, AUGMENTED)),
            (data_dir.is_some(), &reads.data, ("--data-dir", dir, LOADED)),
            (*dataset != DatasetKind::Auto, &reads.data, ("--dataset", set, LOADED)),
        ];
        let unread = options.into_iter().filter(|(is_given, mark, _)| *is_given && !mark.is_set());
        unread.map(|(.., option)| option)
    }

    /// Rejects options that the program has not read before its training of `params` begins.
    pub(super) fn check_read(&self, params: &Params) -> Result<()> {
        if let Some((name, value, how)) = self.unread().next() {
            let range = format!("left out, because this program does not read it: {how}");
            return Err(Error::option(name, &value, range));
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
        Err(Error::option("--precision", &name_of(&self.precision), range))
    }

    fn check_recompute(&self, params: &Params) -> Result<()> {
        let wanted = Recompute::from(self.recompute);
        let range = if wanted == Recompute::None {
            return Ok(());
        } else if params.recompute() != wanted {
            "left out, because this program does not read it: `args.make_optimizer(&params, world)` does"
        } else if !params.has_blocks() {
            "left out, because this program's model has no `candelabrum::nn::layers::Blocks`"
        } else {
            return Ok(());
        };
        Err(Error::option("--recompute", &name_of(&self.recompute), range))
    }
}

/// The name of a value on the command line.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
