//! The replacement of the run of a [`Job`] in builds without ranks of their own, which need Linux.

use super::ended::JobEnd;
use super::job::Job;
use super::signals::Signals;
use crate::Result;
use crate::comm::no_ranks_here;

impl Job {
    /// # Errors
    /// Always: this system starts ranks by MPI only.
    pub fn run(&self, _signals: &mut Signals) -> Result<JobEnd> {
        Err(no_ranks_here())
    }
}
