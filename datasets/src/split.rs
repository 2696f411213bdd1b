//! The division of samples into a part for training and one for tests.

use crate::{
    error::{Error, Result},
    rng::{Purpose, rng, shuffle},
};

/// The numbers of the samples for training and for tests, each ascending. The draw depends on the seed and the count
/// alone. `what` names the samples.
///
/// # Errors
/// A share that leaves a part empty.
pub(crate) fn split(
    count: usize,
    what: &str,
    test_share: f64,
    seed: u64,
) -> Result<[Vec<usize>; 2]> {
    let tests = (count as f64 * test_share).round();
    if !(tests >= 1.0 && tests <= count as f64 - 1.0) {
        return Err(Error::argument(format!(
            "a test share of {test_share} of {count} {what} leaves one of both parts empty"
        )));
    }
    let mut test: Vec<usize> = (0..count).collect();
    shuffle(&mut rng(seed, Purpose::Split, 0, 0), &mut test);
    let mut train = test.split_off(tests as usize);
    test.sort_unstable();
    train.sort_unstable();
    Ok([train, test])
}
