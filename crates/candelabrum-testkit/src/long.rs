//! The long forms of tests: more ranks, more kills, more networks.

/// Whether the long forms of tests are wanted: `CANDELABRUM_TESTS=all`.
pub fn runs_all() -> bool {
    std::env::var("CANDELABRUM_TESTS").is_ok_and(|value| value == "all")
}
