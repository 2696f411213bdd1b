//! Options that a program has been given and does not read: they would have no effect, and nobody would know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_datasets::DatasetKind;

use super::{Augment, Precision, TrainArgs};
use crate::{Error, RanksOpt, Result};

/// What a program has read of its options. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    augment: Arc<AtomicBool>,
    data: Arc<AtomicBool>,
}

impl Reads {
    pub(super) fn note_augment(&self) {
        self.augment.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_data(&self) {
        self.data.store(true, Ordering::Relaxed);
    }
}

/// The options that a program may have been given in vain.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    reads: Reads,
    /// Each option with its value, how a program reads it, and whether this one has.
    options: Vec<(&'static str, String, &'static str)>,
    precision: Precision,
}

const AUGMENTED: &str = "`args.augmented(&images)` gives images with these changes";
const LOADED: &str = "`load_data(&args, world)` reads the digits that these options choose";

impl Given {
    pub(super) fn of(args: &TrainArgs) -> Self {
        let mut options = Vec::new();
        if args.augment != Augment::None {
            let value = if args.augment == Augment::Crop { "crop" } else { "crop-flip" };
            options.push(("--augment", value.to_owned(), AUGMENTED));
        }
        if let Some(dir) = &args.data_dir {
            options.push(("--data-dir", dir.display().to_string(), LOADED));
        }
        if args.dataset != DatasetKind::Auto {
            options.push(("--dataset", args.dataset.to_string(), LOADED));
        }
        Self { reads: args.reads.clone(), options, precision: args.precision }
    }

    /// The options that the program has not read so far, with their values and with how a program reads them.
    pub(super) fn unread(&self) -> impl Iterator<Item = &(&'static str, String, &'static str)> {
        let has_read = |option: &str| match option {
            "--augment" => self.reads.augment.load(Ordering::Relaxed),
            _ => self.reads.data.load(Ordering::Relaxed),
        };
        self.options.iter().filter(move |(option, ..)| !has_read(option))
    }

    /// Refuses options that the program has not read before its training begins.
    pub(crate) fn check(&self, part: Option<&dyn RanksOpt>) -> Result<()> {
        if let Some((option, value, how)) = self.unread().next() {
            let range = format!("left out, because this program does not read it: {how}");
            return Err(Error::Option { option, value: value.clone(), range });
        }
        let Some(params) = part.map(|part| part.params()) else { return Ok(()) };
        if self.precision == Precision::default() {
            return Ok(());
        }
        let (wanted, found) = (self.precision.dtype(params.device()), params.dtype());
        if wanted != found {
            let (option, value) = ("--precision", wanted.as_str().to_owned());
            let range = format!(
                "left out, because this program's parameters are {}: `args.precision.params(seed, device)` makes them in this precision",
                found.as_str()
            );
            return Err(Error::Option { option, value, range });
        }
        Ok(())
    }
}
