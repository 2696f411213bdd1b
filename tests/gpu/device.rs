//! The GPU of the tests.

use candelabrum::memory::cuda;
use candelabrum::prelude::*;

/// The first GPU, as `World` opens it; `None` if there is none.
pub(crate) fn gpu() -> Option<Device> {
    match cuda::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var_os("REQUIRE_GPUS").is_some();
            assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
            eprintln!("left out: no GPU here");
            None
        }
    }
}
