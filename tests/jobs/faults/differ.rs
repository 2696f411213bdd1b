//! A rank that differs from the others: the error names the first difference.

use super::job;

#[test]
fn ranks_that_differ_are_told_in_what() {
    let cases: [(&str, &[&str]); 5] = [
        ("version", &["the version differs between ranks: rank 0 has `0.1.0`, rank(s) 1 `9.9.9`"]),
        ("model", &["parameter hidden.", "differs between ranks", "64", "48"]),
        ("precision", &["the precision differs between ranks: rank 0 has `f32`, rank(s) 1 `bf16`"]),
        ("strategy", &["the dist option differs between ranks", "fp32", "fp16"]),
        ("steps", &["rank 1 has finished while rank 0 is in", "same number of steps"]),
    ];
    for (case, parts) in cases {
        let ended = job::start(case, 1, 2).launch().finish();
        println!("another {case}: {}", ended.program.err);
        ended.assert_failed(parts);
    }
}
