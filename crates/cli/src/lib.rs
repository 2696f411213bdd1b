//! The commands of `candelabrum`, one module each.

#![forbid(unsafe_code)]

mod broken;
mod entries;
mod plot;
mod state;

pub mod report;
pub mod watch;
