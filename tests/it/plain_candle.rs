//! A user's own candle code (tensors and variables, no layers of this project) trains through
//! `DistOpt` as by hand.

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
