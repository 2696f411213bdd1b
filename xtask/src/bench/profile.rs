//! `cargo xtask bench profile`: the time of our step, operation by operation.

use anyhow::Result;

use super::launch::Player;
use super::programs::{NeededPrograms, Programs};
use crate::shell;

pub(crate) const NAME: &str = "profile";
pub(crate) const ABOUT: &str = "The time of each operation in our own training steps";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Network to train
    #[arg(long, default_value = "cnn")]
    network: String,
    /// Examples in a batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Compute threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    let ProfileArgs { network, batch_size, threads, seconds } = args;
    let programs = Programs::find(NeededPrograms::default(), None)?;
    let options = format!(
        "train --network {network} --batch-size {batch_size} --threads {threads} --warm-up 6 --profile {seconds}"
    );
    let player = Player::new(&programs.player).args(options.split(' ')).threads(*threads);
    player.commands()?.iter_mut().try_for_each(shell::run)
}
