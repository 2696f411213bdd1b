//! No pretrained models: they need a crate of their own, which programs of other benchmarks need not build.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::bail;
use candelabrum::dist::World;
use clap::Args;

#[derive(Clone, Debug, Args)]
pub(crate) struct FinetuneArgs {
    /// Any arguments: the error is the same
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
    #[arg(skip = NonZeroUsize::MIN)]
    pub(crate) threads: NonZeroUsize,
}

pub(crate) fn run(args: &FinetuneArgs, _: &World) -> anyhow::Result<()> {
    bail!("finetune {}: build this program with `--features finetune`", args.arguments.join(" "))
}

pub(crate) fn widen(model: &Path, _: &Path) -> anyhow::Result<()> {
    bail!("widen {}: build this program with `--features finetune`", model.display())
}
