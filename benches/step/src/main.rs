//! One measured program of `cargo xtask bench-step`.
fn main() {}
