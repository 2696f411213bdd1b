//! The state of all servers in files.

use std::path::Path;

use candelabrum_dist::Error as DistError;

use super::kv_store::KvStore;
use crate::wire::MessageKind;
use crate::{Error, Result};

impl KvStore {
    /// Writes the state of every server to a file of its own in `dir`, a directory of that server's
    /// host: values, the optimizer's state, the versions. All workers call it together, between two
    /// rounds. The files are safetensors, and each replaces an older one whole. Meanwhile a server needs
    /// twice the memory of its state. What compression has not sent yet is not in the files:
    /// each worker has its own [`residual`](KvStore::residual).
    ///
    /// # Errors
    /// A file that cannot be written, an open round, a failure of another rank, or a passed deadline.
    pub fn save_optimizer_states(&self, dir: &Path) -> Result<()> {
        self.by_first_worker("save_optimizer_states", &[MessageKind::Save], dir)
    }

    /// Reads what [`Self::save_optimizer_states`] has written. The store must have the same keys and
    /// optimizer, and the same number of servers. All workers call it together, and pull afterwards.
    /// Servers change when all of them have read a usable file: after an error, none has changed. What
    /// compression has not sent yet belongs to no saved value, so it is forgotten.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit, a failure of another rank, or a passed deadline.
    pub fn load_optimizer_states(&self, dir: &Path) -> Result<()> {
        self.by_first_worker(
            "load_optimizer_states",
            &[MessageKind::Load, MessageKind::Adopt],
            dir,
        )?;
        self.0.state.lock().keys.iter_mut().for_each(|place| place.residual.clear());
        Ok(())
    }

    fn by_first_worker(&self, during: &str, steps: &[MessageKind], dir: &Path) -> Result<()> {
        let Some(dir) = dir.to_str() else {
            let path = dir.to_owned();
            return Err(Error::State { path, what: "the name is no UTF-8".to_owned() });
        };
        // All pushes of all workers have arrived after this.
        self.ask_all(during, MessageKind::Flush, "")?;
        self.barrier()?;
        let work = || {
            let done = steps.iter().try_for_each(|op| self.ask_all(during, *op, dir).map(drop));
            if done.is_err() && steps.contains(&MessageKind::Load) {
                // The first error says what was wrong.
                drop(self.ask_all(during, MessageKind::Discard, ""));
            }
            done
        };
        let outcome = if self.rank() == 0 { work() } else { Ok(()) };
        // The other workers learn of a failure, and do not go on before it is known.
        let own = match &outcome {
            Ok(()) => String::new(),
            Err(Error::Refused { server, message }) => format!("{server} {message}"),
            Err(error) => format!("- {error}"),
        };
        let told = self.0.workers.broadcast_text(&own, 0)?;
        outcome?;
        match told.split_once(' ') {
            None => Ok(()),
            Some((server, message)) => {
                let message = message.to_owned();
                Err(server.parse().map_or_else(
                    |_| {
                        let peer = self.0.workers.ranks()[0];
                        DistError::PeerFailed { peer, message: message.clone() }.into()
                    },
                    |server| Error::Refused { server, message: message.clone() },
                ))
            }
        }
    }
}
