//! Whether this build has ranks that need no MPI. They communicate by shared memory or TCP and are started by this
//! crate, which needs Linux. The variable CANDELABRUM_PORTABLE leaves them out on Linux, too, so that the build
//! for other systems can be tested there.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CANDELABRUM_PORTABLE");
    println!("cargo::rustc-check-cfg=cfg(local_ranks)");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if is_linux && env::var_os("CANDELABRUM_PORTABLE").is_none() {
        println!("cargo::rustc-cfg=local_ranks");
    }
}
