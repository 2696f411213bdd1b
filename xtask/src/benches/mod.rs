//! The benchmarks, a declaration each.

pub(crate) mod allreduce;
pub(crate) mod checkpoint;
pub(crate) mod ddp;
pub(crate) mod kvstore;
pub(crate) mod overlap;
pub(crate) mod scaling;
pub(crate) mod step;

mod network;
mod parts;
mod profile;
mod training;
#[cfg(test)]
mod version1;

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::bench::run::Bench;

    /// The line in which a value of an option is refused.
    fn refused<B: Bench + Args>(option: &str, value: &str) {
        let command = B::augment_args(clap::Command::new("x"));
        let matches = command.get_matches_from(["x", option, value]);
        let message = B::from_arg_matches(&matches).unwrap().check().unwrap_err().to_string();
        assert!(message.starts_with(option) && !message.contains('\n'), "{message}");
    }

    #[test]
    fn impossible_options_are_refused_in_one_line() {
        refused::<ddp::Ddp>("--workers", "1");
        refused::<allreduce::AllReduce>("--ranks", "2,1");
        refused::<overlap::Overlap>("--rate", "0");
        refused::<scaling::Scaling>("--workers", "1,0");
        refused::<scaling::Scaling>("--spars", "2");
        refused::<scaling::Scaling>("--threshold-spars", "0");
        refused::<kvstore::KvStore>("--slow", "0.5");
        refused::<kvstore::KvStore>("--bound", "0");
        refused::<kvstore::KvStore>("--lr", "0");
    }
}
