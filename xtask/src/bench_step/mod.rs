//! stub
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    Ok(())
}
