//! What takes the place of candle-nn has its values, its parameters, and gradients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::needless_pass_by_value,
    reason = "the signatures are those of programs for candle"
)]
#![expect(clippy::disallowed_methods, reason = "candle's functions are what this package replaces")]

mod gradients;
mod models;
mod parameters;
mod values;
