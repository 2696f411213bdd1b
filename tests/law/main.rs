//! Laws: what must hold however features are combined. Each case is drawn at random from a seed.
//!
//! `steps` has the steps of a loop of one's own, `runs` whole runs.
//! `LAW_STEPS=2000 cargo test --release --test law steps` tries more cases, and `LAW_STEPS_SEED=7` repeats the case
//! of one seed. `LAW_RUNS` and `LAW_RUNS_SEED` do so for runs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod draw;
mod listing;
mod ranks;
mod refused;
mod runs;
mod steps;
