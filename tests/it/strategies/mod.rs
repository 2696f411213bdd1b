//! Every strategy compared with a sequential reference, on worlds of one to four real processes;
//! its traffic, its errors, and its state between steps.

mod exact;
mod faults;
mod problem;
mod reference;
mod state;
mod traffic;

use self::problem::CASE;

use crate::ranks::world_of_rank;

/// Not a test: the program of a rank.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    match std::env::var(CASE).unwrap().as_str() {
        "exact" => exact::rank(&world),
        "traffic" => traffic::rank(&world),
        "state" => state::rank(&world),
        fault => faults::rank(fault, &world),
    }
}
