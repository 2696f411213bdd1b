//! The names of jobs.

use std::fs::File;
use std::io::Read;

use crate::{Error, Result};

/// The system's random numbers. A container with an empty /dev has none.
const SOURCE: &str = "/dev/urandom";

/// A secret that cannot be guessed, so that no other user can take the names of the job's sockets.
///
/// # Errors
/// A system without random numbers.
pub fn unique_job() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::io(format!("draw the name of the job from {SOURCE}"), error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
