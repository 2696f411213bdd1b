//! Every strategy compared with a sequential reference, on worlds of one to four real processes;
//! its traffic, its errors, and its state between steps.

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

use crate::problem::CASE;

/// Not a test: the program of a rank.
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
