//! The dataset of the options.

use candelabrum_datasets::ImageDatasets;
use candelabrum_dist::World;

use super::TrainArgs;
use crate::Result;

/// The dataset of `args`, the same on every rank: see [`load_data`](crate::load_data).
///
/// # Errors
/// Those of [`load_data`](crate::load_data).
pub fn load_data(args: &TrainArgs, world: &World) -> Result<ImageDatasets> {
    crate::load_data(&args.data_request(), world)
}
