//! What a run has before its plan: the machine, the programs and what they know.

use std::path::PathBuf;
use std::rc::Rc;

use super::host::Machine;
use super::hosts::SimulatedHosts;
use super::network::Networks;
use super::programs::Programs;
use super::runner::TurnSchedule;
use super::sample::SettingValues;
use crate::interrupt::SignalWatch;

/// Everything that a plan can need.
pub(crate) struct BenchSetup {
    pub(crate) machine: Machine,
    pub(crate) schedule: TurnSchedule,
    pub(crate) programs: Programs,
    pub(crate) networks: Networks,
    /// The names of the players' strategies.
    pub(crate) strategies: Vec<String>,
    pub(crate) hosts: Option<Rc<SimulatedHosts>>,
    /// Of the results.
    pub(crate) folder: PathBuf,
    pub(crate) watch: SignalWatch,
    /// Values that a benchmark finds itself, for the file.
    pub(crate) found: SettingValues,
}

/// The arguments of a contender that trains a network.
pub(crate) const TRAINING: &str =
    "--network {network} --batch-size {batch_size} --threads {threads} --warm-up {warm_up_steps}";
