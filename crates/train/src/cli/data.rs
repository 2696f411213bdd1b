//! Finding the dataset: rank 0 looks (and downloads), the others follow it.

use candelabrum_datasets::{Environment, Located, Mnist, Request, Source, locate};
use candelabrum_dist::World;

use super::TrainArgs;
use crate::Result;

/// The digits, and what to tell the user about them.
#[derive(Debug)]
pub struct Data {
    /// Training and test images.
    pub mnist: Mnist,
    /// `mnist` or `synthetic digits`.
    pub name: String,
    /// Why it is not MNIST, where that was hoped for.
    pub note: Option<String>,
}

/// The dataset that `args` ask for, the same on every rank.
///
/// # Errors
/// A directory without the files, files that are not what they should be.
pub fn load_data(args: &TrainArgs, world: &World) -> Result<Data> {
    let located = if world.is_root() {
        Some(locate(&Request {
            kind: args.dataset,
            data_dir: args.data_dir.clone(),
            environment: Environment::of_process(),
            seed: args.seed,
            allow_download: true,
            quiet: false,
        })?)
    } else {
        None
    };
    let text = located.as_ref().map(|l: &Located| l.source.to_string()).unwrap_or_default();
    let source: Source = world.comm().broadcast_text(&text, 0)?.parse()?;
    let mnist = source.open()?;
    let name = source.name().to_owned();
    Ok(Data { mnist, name, note: located.and_then(|located| located.note) })
}
