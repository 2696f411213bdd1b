//! Bounding the threads of libraries that read their number from the environment.
//!
//! candle keeps a pool of its own beside rayon's. Its threads spin between operations, and their
//! number can only be set by environment variables that it reads at its first use: on two cores, a
//! second rank's training went at 0.6 of its speed because of them.

/// rayon's threads, and those of candle's matrix products.
const RAYON: &str = "RAYON_NUM_THREADS";

/// candle's spinning pool; one thread is the caller itself and spins for nobody.
const CANDLE: &str = "CANDLE_NUM_THREADS";

/// The variables that bound a process to `threads` compute threads.
pub(super) fn variables(threads: usize) -> [(&'static str, String); 2] {
    let candle = std::env::var(CANDLE).unwrap_or_else(|_| "1".to_owned());
    [(RAYON, threads.to_string()), (CANDLE, candle)]
}
