//! The training loop around a model.
//!
//! Both doors are open: a [`Trainer`] with [`fit`](Trainer::fit), or a loop of your own around
//! [`Trainer::train_one_batch`], or around the distributed optimizer without any of this.
//!
//! | idea | where |
//! |---|---|
//! | one step, one evaluation, the whole run | [`Trainer`], [`FitConfig`] |
//! | the digits to train on, found once per host | [`load_data`] |
//! | what is counted, over all ranks | [`Metrics`] |
//! | the JSON report | [`Report`] |
//! | what every rank did when | [`Timeline`] |
//! | options, launching, errors of a training program | [`cli`] |

#![forbid(unsafe_code)]

mod data;
mod error;
mod fit;
mod metrics;
mod progress;
mod report;
mod threads;
mod timeline;
mod trainer;
mod whole_file;

pub mod cli;

pub use data::{DOWNLOAD_TIME, load_data};
pub use error::{Error, Result};
pub use fit::FitConfig;
pub use metrics::Metrics;
pub use report::{EpochReport, Report, StrategyReport};
pub use threads::{default_threads, set_threads};
pub use timeline::Timeline;
pub use trainer::Trainer;
