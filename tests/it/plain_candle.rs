//! A user's own candle code (tensors and variables, no layers of this project) trains through
//! `DistOpt` as by hand.

use candelabrum::nn::{Init, Param};
use candelabrum::prelude::*;
use candelabrum_testkit::{assert_close, integers, uniform};
use candle_core::{DType, Var};

const STEPS: u64 = 30;
const LR: f64 = 0.05;
const MOMENTUM: f64 = 0.9;

const SHAPES: [(&str, &[usize]); 5] =
    [("embed", &[11, 6]), ("conv", &[4, 1, 3, 3]), ("w1", &[64, 8]), ("b1", &[8]), ("w2", &[8, 3])];

fn vars() -> Vec<Var> {
    let var = |(seed, (_, shape)): (u64, (&str, &[usize]))| {
        Var::from_tensor(&uniform(shape, seed, -0.5, 0.5, DType::F32).unwrap()).unwrap()
    };
    (1..).zip(SHAPES).map(var).collect()
}

/// Gathering, convolution, broadcasting, products with the parameter on either side, and a
/// parameter that is used twice.
fn loss(vars: &[Var], step: u64) -> Tensor {
    let run = || -> candelabrum::candle::Result<Tensor> {
        let [embed, conv, w1, b1, w2] = vars else { unreachable!("five shapes") };
        let tokens = integers(5 * 6, 100 + step, 11)?;
        let xs = embed.embedding(&tokens)?.reshape((5, 1, 6, 6))?;
        let ys = xs.conv2d(conv, 0, 1, 1, 1)?.tanh()?.flatten_from(1)?;
        let ys = ys.matmul(w1)?.broadcast_add(b1)?.gelu()?;
        let ys = ys.matmul(w2)?;
        let decay = (w2.t()?.matmul(w2)?.sqr()?.sum_all()? * 1e-3)?;
        let targets = integers(5, 200 + step, 3)?;
        candle_nn::loss::cross_entropy(&ys, &targets)? + decay
    };
    run().unwrap()
}

#[test]
fn plain_tensors_and_variables_train_as_by_hand() {
    let by_hand = vars();
    let mut velocity: Vec<Option<Tensor>> = vec![None; by_hand.len()];
    for step in 0..STEPS {
        let grads = loss(&by_hand, step).backward().unwrap();
        for (var, velocity) in by_hand.iter().zip(&mut velocity) {
            let grad = grads.get(var).unwrap();
            let new = match velocity.take() {
                Some(old) => ((old * MOMENTUM).unwrap() + grad).unwrap(),
                None => grad.clone(),
            };
            var.set(&(var.as_tensor() - (&new * LR).unwrap()).unwrap()).unwrap();
            *velocity = Some(new.detach());
        }
    }

    let ours = vars();
    let named = SHAPES.iter().zip(&ours).map(|((name, _), var)| (*name, var.clone()));
    let params = Params::from_vars(named).unwrap();
    let mut opt = DistOpt::new(Sgd::new(LR).momentum(MOMENTUM), &params, &World::single()).unwrap();
    let first = loss(&ours, 0).to_scalar::<f32>().unwrap();
    for step in 0..STEPS {
        opt.backward_and_update(&loss(&ours, step)).unwrap();
    }
    for (ours, by_hand) in ours.iter().zip(&by_hand) {
        assert_close(ours, by_hand, 1e-5, 1e-6);
    }
    let last = loss(&ours, 0).to_scalar::<f32>().unwrap();
    assert!(last < first, "the loss went from {first} to {last}");
}

#[test]
fn two_micro_batches_accumulate_to_one_batch() {
    let model = |params: &Params| {
        let weight = params.root().param("weight", (3, 4), Init::Normal { std: 1.0 }).unwrap();
        let bias = params.root().param("bias", 3, Init::ZEROS).unwrap();
        (weight, bias)
    };
    let batch = uniform((8, 4), 1, -1.0, 1.0, DType::F32).unwrap();
    let labels = integers(8, 2, 3).unwrap();
    let loss = |(weight, bias): &(Param, Param), from: usize, count: usize| {
        let (xs, ys) = (batch.narrow(0, from, count).unwrap(), labels.narrow(0, from, count));
        let ys_out = candelabrum::nn::ops::linear(&xs, weight.tensor(), Some(bias.tensor()), None);
        candelabrum::nn::ops::softmax_cross_entropy(&ys_out.unwrap(), &ys.unwrap()).unwrap()
    };
    let train = |accumulate: bool| {
        let params = Params::new(3);
        let model = model(&params);
        let mut opt = DistOpt::new(AdamW::new(0.01), &params, &World::single()).unwrap();
        for _ in 0..5 {
            if accumulate {
                opt.accumulate(&(loss(&model, 0, 4) * 0.5).unwrap()).unwrap();
                let half = (loss(&model, 4, 4) * 0.5).unwrap();
                opt.backward_and_update_with(&half, DistOption::Fp32, 0.0).unwrap();
            } else {
                let whole = loss(&model, 0, 8);
                opt.backward_and_update_with(&whole, DistOption::Fp32, 0.0).unwrap();
            }
        }
        model.0.tensor().copy().unwrap()
    };
    assert_close(&train(true), &train(false), 1e-5, 1e-6);
}
