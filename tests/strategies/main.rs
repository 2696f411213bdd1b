//! Every strategy against a plain sequential reference, on worlds of one to four real processes;
//! what it sends, what it refuses, and what it carries from step to step.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "ranks talk to their test by what they print")]

mod exact;
mod faults;
mod problem;
mod reference;
mod state;
mod traffic;

use candelabrum::prelude::World;
use candelabrum_testkit::ranks::is_rank;

/// Tells a rank what to do.
const CASE: &str = "STRATEGIES_CASE";

/// Not a test: what a rank runs.
#[test]
fn rank_main() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    match std::env::var(CASE).unwrap().as_str() {
        "exact" => exact::rank(&world),
        "traffic" => traffic::rank(&world),
        "state" => state::rank(&world),
        fault => faults::rank(fault, &world),
    }
}
