//! The GPU of the tests.

use candelabrum::prelude::*;

/// The first GPU, with a stream of its own as `World` makes it; `None` if there is none.
pub(crate) fn gpu() -> Option<Device> {
    match Device::new_cuda_with_stream(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var_os("REQUIRE_GPUS").is_some();
            assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
            eprintln!("left out: no GPU here");
            None
        }
    }
}
