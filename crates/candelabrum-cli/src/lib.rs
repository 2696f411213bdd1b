#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod broken;
mod entries;
mod number;
mod state;

pub mod report;
pub mod run;
pub mod watch;
