//! The training loop around a model.
//!
//! There are two ways to train: a [`Trainer`] with [`fit`](Trainer::fit), or your own loop around
//! [`Trainer::train_one_batch`] or around the distributed optimizer alone.
//!
//! | idea | where |
//! |---|---|
//! | one step, one evaluation, the whole run | [`Trainer`], [`FitConfig`] |
//! | the order of the samples, and the length of an epoch | [`Sampling`] |
//! | the digits for training, found once per host | [`load_data`] |
//! | loss and measures over all ranks | [`Metrics`], [`Score`] |
//! | a training of several models, losses or inputs | [`Task`], [`Fit`] |
//! | what is called while a training runs | [`hooks`] |
//! | checkpoints, and continuing from them | [`checkpoint`] |
//! | the JSON report, the log for `watch`, `report` and TensorBoard | [`ReportFile`], [`LogFiles`] |
//! | a trace of every rank's work | [`Timeline`] |
//! | options, launching, errors of a training program | [`cli`] |

#![forbid(unsafe_code)]

mod agreement;
mod class_scores;
mod confusion;
mod data;
mod error;
mod evaluation;
mod fit;
mod log_files;
mod metrics;
mod options;
mod parts;
mod prediction;
mod progress;
mod report;
mod report_file;
mod sampling;
mod score;
mod task;
mod threads;
mod timeline;
mod trainer;

pub mod checkpoint;
pub mod cli;
pub mod hooks;

pub use class_scores::{ConfusionMatrix, F1, TopAccuracy};
pub use confusion::Confusion;
pub use data::{DOWNLOAD_TIME, load_data};
pub use error::{Error, Result};
pub use fit::{EvaluationSets, Fit, FitConfig, Interrupt};
pub use log_files::LogFiles;
pub use metrics::Metrics;
pub use report::{EpochReport, Report, StrategyReport};
pub use report_file::ReportFile;
pub use sampling::Sampling;
pub use score::{Accuracy, IgnoringAccuracy, LossOnly, Perplexity, RegressionErrors, Score};
pub use task::{Inputs, Supervised, Task};
pub use threads::{default_threads, set_threads};
pub use timeline::Timeline;
pub use trainer::Trainer;
