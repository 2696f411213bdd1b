//! The orderly end of a rank's part in the job.

use std::hash::{BuildHasher, RandomState};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;

use super::failures::LOOK_AFTER;
use super::headers::GOODBYE;
use super::job::STRAGGLER;
use super::{MpiTransport, launcher_barrier, life, raw};
use crate::comm::transport::RankTransport;
use crate::comm::wait::{BackoffWait, MachineLoad};
use crate::{Error, Result};

impl MpiTransport {
    /// Sends a goodbye to this group's members, except after a failure, which aborts the job.
    pub(super) fn say_goodbye(&mut self) -> Result<()> {
        if self.job.failures.has_failed() {
            return Ok(());
        }
        // Starts all requested sends, because a goodbye contains their number.
        self.job.messages.progress();
        for other in self.others() {
            let sent = self.messages.sent(other);
            self.tell(other, [GOODBYE, sent, 0, 0], &[], "leaving")?;
        }
        let peers = std::mem::take(&mut self.peers);
        self.job.note_left(Arc::clone(&self.messages), peers);
        Ok(())
    }

    /// Waits until the members of all this rank's groups have left them, and finalises MPI.
    /// `MPI_Finalize` alone would also wait for all ranks, but it would occupy a core meanwhile.
    ///
    /// After a failure MPI is not finalised, because that would hang; see [`life`].
    pub(super) fn end(&mut self) {
        if self.job.failures.has_failed() {
            return life::failed();
        }
        if let Err(error) = self.end_in_order() {
            tracing::error!("leaving the MPI job: {error}");
            life::failed();
        }
    }

    fn end_in_order(&mut self) -> Result<()> {
        let (mut load, mut wait) = (MachineLoad::default(), BackoffWait::begin());
        while self.job.give_back()? {
            self.progress();
            if wait.pause(&mut load) > LOOK_AFTER {
                self.job.failures.look()?;
            }
        }
        let mut drained = BackoffWait::begin();
        while self.job.messages.are_sending() {
            if drained.pause(&mut load) > STRAGGLER {
                let what = "a message that was sent has never been received".to_owned();
                return Err(Error::Protocol { what });
            }
        }
        let barrier = self.launcher_barrier_job()?;
        self.group.clone().free()?;
        barrier.map_or(Ok(()), |job| self.wait_at_launcher_barrier(job))?;
        if let (Some(universe), true) = (self.universe.take(), life::end()) {
            drop(ManuallyDrop::into_inner(universe));
        }
        Ok(())
    }

    /// The number of this job for [`Self::wait_at_launcher_barrier`], if MPI's library needs that.
    fn launcher_barrier_job(&self) -> Result<Option<u64>> {
        if self.world_size() == 1 || !launcher_barrier::is_needed(&raw::library_text()) {
            return Ok(None);
        }
        let draws = self.group.gather_words(RandomState::new().hash_one(()))?;
        Ok(draws.first().copied())
    }

    /// Waits until no rank polls MPI any more.
    fn wait_at_launcher_barrier(&self, job: u64) -> Result<()> {
        let names = raw::LauncherNames;
        match launcher_barrier::wait(&names, job, self.rank, self.world_size(), self.deadline) {
            // The launcher keeps no names, so a pause takes the place of the barrier. A rank polls
            // no longer than this after another rank, unless its host is overloaded.
            Err(Error::Mpi { call, message }) => {
                tracing::debug!("a pause before MPI_Finalize, because of {call}: {message}");
                thread::sleep(STRAGGLER);
                Ok(())
            }
            other => other,
        }
    }
}
