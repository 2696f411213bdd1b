//! The benchmarks, a declaration each.

pub(crate) mod allreduce;
pub(crate) mod checkpoint;
pub(crate) mod ddp;
pub(crate) mod finetune;
pub(crate) mod kvstore;
pub(crate) mod memory;
pub(crate) mod overlap;
pub(crate) mod scaling;
pub(crate) mod shard;
pub(crate) mod step;
pub(crate) mod zoo;

mod network;
mod parts;
mod profile;
mod training;

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::Path;

    use clap::Args;

    use super::*;
    use crate::bench::run::{annotate, picture};
    use crate::bench::{Bench, BenchReport, Row, table};
    use crate::checkout::repo_root;

    /// The benchmark with these options.
    fn bench<B: Bench + Args>(options: &[&str]) -> B {
        let words = ["x"].iter().chain(options);
        let matches = B::augment_args(clap::Command::new("x")).get_matches_from(words);
        B::from_arg_matches(&matches).unwrap()
    }

    /// The line in which a value of an option is refused.
    fn refused<B: Bench + Args>(option: &str, value: &str) {
        let message = bench::<B>(&[option, value]).check().unwrap_err().to_string();
        assert!(message.starts_with(option) && !message.contains('\n'), "{message}");
    }

    #[test]
    fn impossible_options_are_refused_in_one_line() {
        refused::<ddp::Ddp>("--workers", "1");
        refused::<shard::Shard>("--workers", "1");
        refused::<allreduce::AllReduce>("--ranks", "2,1");
        refused::<finetune::Finetune>("--model", "no-such-model");
        refused::<overlap::Overlap>("--rate", "0");
        refused::<scaling::Scaling>("--workers", "1,0");
        refused::<scaling::Scaling>("--spars", "2");
        refused::<scaling::Scaling>("--threshold-spars", "0");
        refused::<kvstore::KvStore>("--slow", "0.5");
        refused::<kvstore::KvStore>("--bound", "0");
        refused::<kvstore::KvStore>("--lr", "0");
    }

    /// Compares the rows of a kept report anew, and checks that the words are in its tables, its notes or its
    /// picture. `PICTURES` names a folder for the picture.
    fn shown<B: Bench + Args>(words: &[&str]) {
        let bench = bench::<B>(&[]);
        let path = repo_root().join(format!("xtask/fixtures/{}.json", B::FILE));
        let mut report = BenchReport::read(&path, B::NAME).unwrap();
        let kept = report.clone();
        legs(&mut report).for_each(|rows| bench.derive(rows));
        assert_eq!(report.rows, kept.rows);
        annotate(&bench, &mut report);
        let picture = picture(&bench, &report).svg();
        if let Some(folder) = env::var_os("PICTURES") {
            fs::write(Path::new(&folder).join(format!("{}.svg", B::FILE)), &picture).unwrap();
        }
        let mut text = report.notes.join("\n");
        for rows in legs(&mut report) {
            for columns in bench.tables(rows) {
                text += &table::lines(&columns, rows, true);
            }
        }
        for word in words {
            assert!(picture.contains(word) || text.contains(word), "{word}: {text}\n{picture}");
        }
    }

    /// The rows that were compared with each other.
    fn legs(report: &mut BenchReport) -> impl Iterator<Item = &mut [Row]> {
        let place = |row: &Row| {
            ["network", "threads", "backend", "size"].map(|name| row.point.get(name).cloned())
        };
        report.rows.chunk_by_mut(move |a, b| place(a) == place(b))
    }

    #[test]
    fn reports_of_earlier_runs_are_read_and_shown() {
        shown::<step::Step>(&[
            "MNIST CNN",
            "2 threads, images per second",
            "PyTorch, channels last",
            "× PyTorch)",
            "peak memory, MB",
            "candle's loss differs",
        ]);
        shown::<ddp::Ddp>(&[
            "Candelabrum to the best DDP: ",
            "bucket views",
            "2 workers",
            "× best DDP",
        ]);
        shown::<scaling::Scaling>(&[
            "images per second",
            "workers (ranks)",
            "milliseconds per step",
            "sparseTopK",
            "exposed communication",
            "cnn, local backend, 2 workers",
            "KB received",
        ]);
        shown::<allreduce::AllReduce>(&[
            "2 ranks",
            "C, MPI_Allreduce",
            "100 ms",
            "1 MB",
            "1.7 MB",
            "of memory",
        ]);
        shown::<overlap::Overlap>(&[
            "overlap off",
            "overlap hides 8% (from 5% to 13%)",
            "1230 Mbit/s",
            "busy comm.",
        ]);
    }
}
