//! Writes the made-up runs.
#[path = "../tests/made_up/mod.rs"]
mod made_up;
fn main() {
    let dir = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    made_up::MadeUp::fp32().write(&dir.join("fp32"));
    made_up::MadeUp::sparse_top_k().write(&dir.join("sparseTopK"));
}
