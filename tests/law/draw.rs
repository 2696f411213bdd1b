//! A case of a law is drawn from its seed alone, so the seed repeats it.

use candelabrum_testkit::split_mix;

/// Random choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(split_mix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = split_mix(self.0);
        self.0
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() % (most - least + 1) as u64) as usize
    }

    /// Whether something happens that happens `percent` times of 100.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.number(0, choices.len() - 1)]
    }
}

/// Tries the seeds that have found something, and then `usual` others, or as many as `variable` says. The seed of a
/// case that fails is printed, however it fails.
pub(crate) fn for_each_seed(variable: &str, usual: u64, kept: &[u64], check: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let one = format!("{variable}_SEED");
    let seeds: Vec<u64> = match number(&one) {
        Some(seed) => vec![seed],
        None => kept.iter().copied().chain(1..=number(variable).unwrap_or(usual)).collect(),
    };
    for seed in seeds {
        let _case = Case { variable: &one, seed };
        check(seed);
    }
}

/// Says which case was being tried when the test panics.
struct Case<'a> {
    variable: &'a str,
    seed: u64,
}

impl Drop for Case<'_> {
    #[expect(clippy::print_stderr, reason = "a person repeats the case")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}={} repeats the case that has failed", self.variable, self.seed);
        }
    }
}
