//! The state of a [`StoreOpt`] in a checkpoint: its servers write files of their own, from which the workers
//! get all parameters again. Rank 0 writes the parameters beside them, for other programs, and each worker what
//! compression has not sent yet.

use std::path::Path;

use candelabrum_kvstore::StoreOpt;
use candelabrum_memory::Span;
use candelabrum_nn::Params;

use super::manifest::PartState;
use super::model::{PARAMETERS, RESIDUALS, device, mean_of};
use super::parameters::{check_parameters, load_parameters, save_parameters};
use super::restored::Restored;
use super::snapshot::{Snapshot, shared_name};
use super::stateful::Stateful;
use crate::Result;

impl Stateful for StoreOpt {
    fn params(&self) -> &Params {
        self.params()
    }

    fn average_parameters(&mut self) -> Result<()> {
        Ok(self.average_parameters()?)
    }

    fn save(&mut self, name: &str, snapshot: &mut Snapshot, dir: &Path) -> Result<PartState> {
        let servers = shared_name(name, "servers");
        self.store().save_optimizer_states(&dir.join(&servers))?;
        if let Some(file) = snapshot.shared(name, PARAMETERS) {
            save_parameters(self.params(), file)?;
        }
        for param in self.params().trainable() {
            let residual = self.store().residual(param.name())?;
            if !residual.is_empty() {
                let file = snapshot.own(name, RESIDUALS);
                file.put(param.name(), &[residual.len()], Span::Host(&residual)).map_err(device)?;
            }
        }
        let constants = self.constants_sha256()?;
        Ok(PartState::Store { steps: self.steps(), servers, constants })
    }

    fn check(&mut self, name: &str, restored: &Restored) -> Result<()> {
        let PartState::Store { constants, .. } = restored.part(name)? else {
            return Err(restored.refuse(
                "is of a training without a key-value store, this one has one: leave --kvstore out"
                    .to_owned(),
            ));
        };
        restored.check_constants(constants.as_deref(), self.constants_sha256()?.as_deref())?;
        check_parameters(self.params(), restored, name)
    }

    fn load(&mut self, name: &str, restored: &Restored) -> Result<()> {
        let PartState::Store { steps, servers, .. } = restored.part(name)? else {
            return self.check(name, restored);
        };
        // For the buffers: the parameters come from the servers.
        load_parameters(self.params(), restored, name)?;
        self.store().load_optimizer_states(&restored.path().join(servers))?;
        let residuals = restored.own(name, RESIDUALS);
        for param in self.params().trainable() {
            let is_saved = residuals.iter().any(|file| file.has(param.name()));
            let residual = if is_saved { mean_of(&residuals, param.name())? } else { Vec::new() };
            self.store().set_residual(param.name(), residual)?;
        }
        self.set_steps(*steps);
        Ok(self.pull_parameters()?)
    }
}
