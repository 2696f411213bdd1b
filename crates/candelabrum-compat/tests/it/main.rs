//! What takes the place of candle-nn has its values, its parameters, and gradients.

#![expect(clippy::disallowed_methods, reason = "candle's functions are what this package replaces")]

mod gradients;
mod models;
mod parameters;
mod values;
