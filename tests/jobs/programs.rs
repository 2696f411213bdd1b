//! The programs of the jobs.

use candelabrum_testkit::{Program, Running};

pub(crate) use crate::common::example;
use crate::common::programs;

/// The command `candelabrum`, built as [`example`] is.
pub(crate) fn command() -> Program {
    Program::new(programs().join("candelabrum"))
}

/// Waits until a training begins its first epoch.
#[track_caller]
pub(crate) fn wait_for_training(program: &Running) {
    program.wait_for("Starting Epoch 0:");
}
