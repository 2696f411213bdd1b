//! What takes the place of candle-nn has its values, its parameters, and gradients.

mod gradients;
mod models;
mod parameters;
mod values;
