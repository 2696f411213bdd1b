//! The driver calls of one training step, by kind, against a table. The host has to make each of them in
//! time, so their number must not grow unseen.
//!
//! Only the software GPU counts calls (`SOFTGPU_COUNTS`). The numbers are the same on every machine. Where a
//! number has changed, also to a smaller one, the failed test prints the lines that `STEPS` must have, ready
//! to be copied:
//!
//! ```text
//! cargo xtask softgpu -- cargo test --workspace --features candelabrum/cuda,candelabrum-softgpu/cuda --test gpu -- calls
//! ```

use std::time::Duration;

use candelabrum::dist::{Error, StepGraph};
use candelabrum::models::{Cnn, Gpt, GptConfig, GruClassifier, GruClassifierConfig, Mlp, ResNet18};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::{integers, uniform};

use crate::device::gpu;
use crate::linear::is_software_gpu;

/// What is counted, as the software GPU names it.
const KINDS: [&str; 12] = [
    "kernels",
    "kernels_of_candle",
    "blas_products",
    "dnn_products",
    "allocations",
    "frees",
    "fills",
    "copies_to_device",
    "copies_from_device",
    "copies_on_device",
    "waits",
    "graph_launches",
];

type Counts = [u64; KINDS.len()];

/// The calls of one step of each network in f32, in a world of one. A network with `graph` replays a
/// recorded step.
#[rustfmt::skip]
const STEPS: [(&str, Counts); 9] = [
    // Kernels of ours, of candle; products of cuBLAS, of cuDNN; allocations, frees, fills; copies to the
    // device, from it, on it; waits, of which one is in the copy from the device; launches of graphs.
    ("cnn", [27, 0, 6, 5, 28, 28, 2, 0, 1, 0, 2, 0]),
    ("cnn graph", [7, 2, 0, 0, 3, 3, 2, 0, 1, 1, 2, 3]),
    ("mlp", [18, 0, 8, 0, 18, 18, 2, 0, 1, 0, 2, 0]),
    ("mlp graph", [7, 2, 0, 0, 3, 3, 2, 0, 1, 1, 2, 3]),
    ("gru", [81, 0, 69, 0, 31, 31, 6, 0, 1, 0, 2, 0]),
    ("gru graph", [4, 2, 0, 0, 3, 3, 2, 0, 1, 1, 2, 2]),
    ("resnet18", [123, 0, 3, 59, 209, 209, 2, 0, 1, 16, 2, 0]),
    ("resnet18 graph", [11, 2, 0, 0, 3, 3, 2, 0, 1, 1, 2, 4]),
    ("gpt", [56, 0, 27, 0, 101, 101, 3, 0, 1, 8, 2, 0]),
];

/// The steps before the one that is counted. A graph computes three of them and records one.
const WARM_UP: usize = 6;
const SAMPLES: usize = 2;
const CLASSES: usize = 10;
const GRU: GruClassifierConfig =
    GruClassifierConfig { vocabulary: 64, embedding: 64, hidden: 128, classes: CLASSES };
/// The tokens of a sequence, each of which is a step of the recurrent layer.
const SEQUENCE: usize = 32;

fn gpt() -> GptConfig {
    GptConfig { context: 16, layers: 2, width: 32, heads: 2, ..GptConfig::default() }
}

#[test]
fn a_step_makes_the_calls_of_the_table() {
    if is_rank() {
        let counted = STEPS.map(|(name, _)| (name, calls_of(name)));
        let lines = counted.map(|(name, counts)| format!("    ({name:?}, {counts:?}),\n")).concat();
        assert!(counted == STEPS, "the lines of STEPS are now\n{lines}of {KINDS:?}");
        return;
    }
    if gpu().is_none() {
        return;
    }
    if !is_software_gpu() {
        eprintln!("left out: calls are counted on the software GPU only");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let rank = RanksOf::new(a_step_makes_the_calls_of_the_table);
    let rank = rank.env("SOFTGPU_COUNTS", file.display());
    rank.limit(Duration::from_secs(600)).run_all_good(1);
}

/// The calls of one step of a line of the table.
fn calls_of(name: &str) -> Counts {
    let (network, use_graph) = name.strip_suffix(" graph").map_or((name, false), |n| (n, true));
    let params = Params::on(3, DType::F32, &gpu().unwrap());
    let root = &params.root();
    let images = |channels, side| {
        uniform((SAMPLES, channels, side, side), 1, -1.0, 1.0, DType::F32).unwrap()
    };
    let labels = || integers(SAMPLES, 2, CLASSES as u32).unwrap();
    let text = |seed| integers((SAMPLES, gpt().context), seed, gpt().vocabulary as u32).unwrap();
    match network {
        "cnn" => {
            calls_of_model(&Cnn::new(root, CLASSES), &params, [images(1, 28), labels()], use_graph)
        }
        "mlp" => {
            calls_of_model(&Mlp::new(root, CLASSES), &params, [images(1, 28), labels()], use_graph)
        }
        "resnet18" => calls_of_model(
            &ResNet18::new(root, CLASSES),
            &params,
            [images(3, 32), labels()],
            use_graph,
        ),
        "gru" => {
            let tokens = integers((SAMPLES, SEQUENCE), 1, GRU.vocabulary as u32).unwrap();
            calls_of_model(&GruClassifier::new(root, GRU), &params, [tokens, labels()], use_graph)
        }
        _ => {
            assert_eq!(network, "gpt");
            let gpt = Gpt::new(root, gpt());
            // The loss of its `train_one_batch`.
            let loss = |xs: &Tensor, ys: &Tensor| gpt.loss_of(&gpt.states(xs)?, ys);
            calls_of_step(loss, &params, [text(1), text(2)], use_graph)
        }
    }
}

fn calls_of_model(
    model: &impl Model,
    params: &Params,
    batch: [Tensor; 2],
    use_graph: bool,
) -> Counts {
    let loss = |xs: &Tensor, ys: &Tensor| model.loss(&model.forward(xs)?, ys);
    calls_of_step(loss, params, batch, use_graph)
}

/// The calls of one step after [`WARM_UP`] others on the same batch.
fn calls_of_step(
    loss: impl Fn(&Tensor, &Tensor) -> candelabrum::candle::Result<Tensor>,
    params: &Params,
    batch: [Tensor; 2],
    use_graph: bool,
) -> Counts {
    let [xs, ys] = batch.map(|tensor| tensor.to_device(params.device()).unwrap());
    loss(&xs, &ys).unwrap(); // creates the parameters
    let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
    let mut opt = DistOpt::new(sgd, params, &World::single()).unwrap();
    let mut graph = StepGraph::<2, 1>::default();
    let settings = (DistOption::Fp32, 0.05);
    let compute = |opt: &mut DistOpt, xs: &Tensor, ys: &Tensor| -> Result<Tensor, Error> {
        let loss = loss(xs, ys)?;
        opt.backward_and_update_with(&loss, settings.0, settings.1)?;
        Ok(loss.detach())
    };
    let mut step = || {
        if !use_graph {
            return compute(&mut opt, &xs, &ys).unwrap();
        }
        let [loss] = graph
            .run(&mut opt, [&xs, &ys], settings, |opt, [xs, ys]| {
                Ok::<_, Error>([compute(opt, xs, ys)?])
            })
            .unwrap();
        let notes = opt.take_notes();
        assert!(notes.is_empty(), "the step is recorded: {notes:?}");
        loss
    };
    (0..WARM_UP).for_each(|_| drop(step()));
    let before = counts();
    drop(step());
    let after = counts();
    std::array::from_fn(|kind| after[kind] - before[kind])
}

/// The calls of this process so far.
fn counts() -> Counts {
    let text = std::fs::read_to_string(std::env::var_os("SOFTGPU_COUNTS").unwrap()).unwrap();
    let mut lines = text.lines();
    let counts = KINDS.map(|kind| {
        let line = lines.next().unwrap();
        line.strip_prefix(kind).unwrap().trim().parse().unwrap()
    });
    assert_eq!(lines.next(), None);
    counts
}
