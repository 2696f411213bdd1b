//! What a run has before its plan: the machine, the programs and what they know.

use std::path::PathBuf;
use std::rc::Rc;

use super::host::Host;
use super::hosts::Hosts;
use super::network::Networks;
use super::programs::Programs;
use super::runner::Schedule;
use super::sample::Values;
use crate::interrupt::Watch;

/// Everything that a plan can need.
pub(crate) struct Setup {
    pub(crate) machine: Host,
    pub(crate) schedule: Schedule,
    pub(crate) programs: Programs,
    pub(crate) networks: Networks,
    /// The names of the players' strategies.
    pub(crate) strategies: Vec<String>,
    pub(crate) hosts: Option<Rc<Hosts>>,
    /// Of the results.
    pub(crate) folder: PathBuf,
    pub(crate) watch: Watch,
    /// Values that a benchmark finds itself, for the file.
    pub(crate) found: Values,
}

/// The arguments of a contender that trains a network.
pub(crate) const TRAINING: &str =
    "--network {network} --batch-size {batch_size} --threads {threads} --warm-up {warm_up_steps}";
