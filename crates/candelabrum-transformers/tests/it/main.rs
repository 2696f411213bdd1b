//! The crate against Python's packages on tiny and real folders, and files that cannot be used.

mod adapters;
mod bad_input;
mod common;
mod files;
mod keys;
mod open_in_python;
mod real;
mod tiny;
