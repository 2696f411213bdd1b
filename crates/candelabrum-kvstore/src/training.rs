//! Training through a store.
//!
//! In dist_sync the servers are ranks of a step: the gradients do not travel as pushes, but by the collectives of
//! [`DistOpt`](candelabrum_dist::DistOpt), and the store carries what the first worker says to the servers. In
//! dist_async, and in a store of one process, each parameter is a key, and a gradient is a push whose answer has the new
//! value. The first layers' keys have the highest priority, because the next forward pass needs them first.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use candelabrum_dist::{CommStats, Group, NewValues, RoundServers, Servers, UpdateServers};
use candelabrum_memory::{Span, SpanMut};
use candelabrum_nn::{DistOption, Param};
use candelabrum_optim::Recipe;

use crate::codec::Compression;
use crate::config::StoreKind;
use crate::store::{KvStore, PendingPull};
use crate::values::PushValues;
use crate::{Error, Result};

impl KvStore {
    /// The servers of this store, for [`DistOpt::with_servers`](candelabrum_dist::DistOpt::with_servers). With dist_sync
    /// each optimizer needs a call of its own. Another store has one optimizer. All workers call it together.
    ///
    /// ```
    /// use candelabrum_dist::{DistOpt, DistOptConfig, World};
    /// use candelabrum_kvstore::KvStore;
    /// use candelabrum_nn::{BackwardAndUpdate, DistOption, Init, Params};
    /// use candelabrum_optim::Sgd;
    ///
    /// let params = Params::new(0);
    /// let weight = params.root().param("weight", 2, Init::Const(1.0))?;
    /// let store = KvStore::create("local", &World::single())?;
    /// let mut opt =
    ///     DistOpt::with_servers(Sgd::new(0.25), &params, store.servers(), DistOptConfig::default())?;
    /// let loss = weight.tensor().sqr()?.sum_all()?;
    /// opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)?;
    /// assert_eq!(weight.tensor().to_vec1::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn servers(&self) -> Servers {
        let (Some(ranks), StoreKind::DistSync) = (self.step_ranks(), self.config().kind) else {
            return Servers::AtOnce(Box::new(KeyUpdates {
                store: self.clone(),
                number: self.next_model(),
                keys: Vec::new(),
            }));
        };
        let (store, model) = (self.clone(), self.next_model());
        Servers::Rounds(RoundServers {
            workers: Arc::clone(self.workers()),
            ranks: Arc::clone(ranks),
            model,
            tell: Box::new(move |text| Ok(store.tell_servers(text)?)),
        })
    }
}

/// A store whose keys are the parameters of a model.
struct KeyUpdates {
    store: KvStore,
    /// The number of the model.
    number: usize,
    /// The names of the parameters.
    keys: Vec<String>,
}

impl KeyUpdates {
    /// The first parameters are needed first.
    fn priority(param: usize) -> i32 {
        i32::try_from(param).map_or(i32::MIN, |param| -param)
    }
}

impl UpdateServers for KeyUpdates {
    fn workers(&self) -> &Group {
        self.store.workers()
    }

    fn set_optimizer(&mut self, recipe: &Recipe) -> candelabrum_dist::Result<()> {
        if self.number > 0 {
            let (setting, value) = ("the optimizers of a store", (self.number + 1).to_string());
            let range = "1 where each gradient is an update: make another store";
            return Err(candelabrum_dist::Error::Setting { setting, value, range });
        }
        Ok(self.store.set_optimizer(recipe.clone(), 1.0)?)
    }

    fn bind(&mut self, params: &[Param]) -> candelabrum_dist::Result<()> {
        let values =
            params.iter().map(|param| (param.name().into(), param.var().as_detached_tensor()));
        self.store.init_all(values)?;
        self.keys = params.iter().map(|param| param.name().to_owned()).collect();
        Ok(())
    }

    fn push(
        &mut self,
        param: usize,
        gradient: &[f32],
        (option, spars): (DistOption, f32),
    ) -> candelabrum_dist::Result<NewValues> {
        let code = lossless(gradient, option, spars);
        let (key, values) = (&*self.keys[param], PushValues::Slice(gradient));
        let pull = self.store.pushpull_with(key, values, Self::priority(param), code)?;
        Ok(Box::new(move |values| Ok(write(pull, values)?)))
    }

    fn pull(&mut self, param: usize) -> candelabrum_dist::Result<NewValues> {
        let pull = self.store.pull(&*self.keys[param], Self::priority(param))?;
        Ok(Box::new(move |values| Ok(write(pull, values)?)))
    }

    fn barrier(&mut self) -> candelabrum_dist::Result<()> {
        Ok(self.store.barrier()?)
    }

    fn save(&mut self, dir: &Path) -> candelabrum_dist::Result<()> {
        Ok(self.store.save_optimizer_states(dir)?)
    }

    fn load(&mut self, dir: &Path) -> candelabrum_dist::Result<()> {
        Ok(self.store.load_optimizer_states(dir)?)
    }

    fn traffic(&self) -> CommStats {
        self.store.traffic()
    }
}

impl fmt::Debug for KeyUpdates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyUpdates({} keys of {:?})", self.keys.len(), self.store)
    }
}

/// The shortest code that loses nothing of a gradient which this strategy has compressed already.
fn lossless(gradient: &[f32], option: DistOption, spars: f32) -> Compression {
    match option {
        DistOption::Fp16 => Compression::Fp16,
        DistOption::Bf16 => Compression::Bf16,
        // A clip may have changed what the strategy has made.
        DistOption::TwoBit
            if gradient.iter().all(|value| *value == 0.0 || value.abs() == spars) =>
        {
            Compression::TwoBit { threshold: spars }
        }
        DistOption::OneBit if gradient.iter().all(|value| value.abs() == 1.0) => {
            Compression::OneBit { threshold: 0.0 }
        }
        // An element of a sparse message takes 8 bytes, and another one 4.
        _ if 2 * gradient.iter().filter(|value| **value != 0.0).count() < gradient.len() => {
            Compression::Threshold { magnitude: f32::from_bits(1) }
        }
        _ => Compression::None,
    }
}

fn write(pull: PendingPull, values: SpanMut<'_>) -> Result<()> {
    match values {
        SpanMut::Host(values) => pull.wait_into(values),
        mut values => {
            let mut copy = vec![0.0; values.len()];
            pull.wait_into(&mut copy)?;
            Ok(values.copy_from(Span::Host(&copy))?)
        }
    }
}

impl From<Error> for candelabrum_dist::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Dist(error) => error,
            error => Self::Servers { source: Arc::new(error) },
        }
    }
}
