//! The loader over every kind of data: the same global batches for any number of ranks and threads,
//! exact positions, windows of shuffling, parts, and errors in their places.

mod contents;
mod failures;
mod kinds;
mod order;
mod parts;
mod positions;
mod promise;
