//! Training in process, and on ranks that are processes of this program.
//!
//! A test of several ranks starts them with `RanksOf::new(rank_main)`, where `rank_main` is a test of its module that
//! returns at once in any other process. A test of a setting of the whole process starts one in the same way.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "ranks talk to their test by what they print")]

// A step of training: its numbers, its errors.
mod composites;
mod dist_opt;
mod equivalence;
mod failed_step;
mod golden_cnn;
mod groups;
mod kvstore;
mod overlap;
mod overlap_forward;
mod sharded;
mod sharded_parameters;
mod shards;
mod strategies;
mod sync_batch_norm;
mod tensor_parallel;

// The types and the precision of numbers.
mod bf16_products;
mod half_precision;

// Models of candle and of candle-nn.
mod candle_nn_layers;
mod candle_nn_model;
mod plain_candle;

// Whole runs.
mod averages;
mod averages_of_shards;
mod best_models;
mod evaluation_sets;
mod export;
mod hooks;
mod houses;
mod limits;
mod line;
mod long_run;
mod optimizers;
mod options;
mod predict;
mod ranks;
mod sampling;
mod trainer;
