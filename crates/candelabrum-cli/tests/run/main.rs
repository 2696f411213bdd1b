//! `candelabrum run` as by a user: real processes, each with a time limit.

mod codes;
mod errors;
mod hosts;
mod output;
mod program;
mod restarts;
mod signals;
mod world;
