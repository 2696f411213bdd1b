//! A model file written for candle: here every parameter is trained, and with candle-nn not.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap, loss};

/// The file with the layers of this package.
mod ours {
    use candelabrum_compat as nn;
    include!("decoder.inc");
}

/// The same file with those of candle-nn.
mod candles {
    use candle_nn as nn;
    include!("decoder.inc");
}

const VOCABULARY: usize = 11;

/// Each token is followed by the next number.
fn batch() -> (Tensor, Tensor) {
    let tokens: Vec<u32> = (0..4 * 9).map(|i| (i / 9 * 3 + i % 9) % VOCABULARY as u32).collect();
    let all = Tensor::from_vec(tokens, (4, 9), &Device::Cpu).unwrap();
    (all.narrow(1, 0, 8).unwrap(), all.narrow(1, 1, 8).unwrap().flatten_all().unwrap())
}

fn loss_of(logits: Result<Tensor>, next: &Tensor) -> Tensor {
    loss::cross_entropy(&logits.unwrap().flatten_to(1).unwrap(), next).unwrap()
}

/// The names of the variables that a loss has no gradient for.
fn without_gradient(varmap: &VarMap, loss: &Tensor) -> BTreeSet<String> {
    let gradients = loss.backward().unwrap();
    let data = varmap.data().lock().unwrap();
    let without = data.iter().filter(|(_, var)| gradients.get(var).is_none());
    without.map(|(name, _)| name.clone()).collect()
}

#[test]
fn a_decoder_gets_all_its_gradients_and_learns() {
    let (tokens, next) = batch();
    let varmap = VarMap::new();
    let builder = || VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = ours::Decoder::new(VOCABULARY, builder()).unwrap();
    // The same variables.
    let candles = candles::Decoder::new(VOCABULARY, builder()).unwrap();

    let first = loss_of(model.forward(&tokens), &next);
    let of_candle = loss_of(candles.forward(&tokens), &next);
    let [first_loss, of_candle_loss] =
        [&first, &of_candle].map(|loss| loss.to_scalar::<f32>().unwrap());
    assert!((first_loss - of_candle_loss).abs() < 1e-5, "{first_loss}, candle {of_candle_loss}");
    assert!(without_gradient(&varmap, &first).is_empty());
    let lost = without_gradient(&varmap, &of_candle);
    assert_eq!(
        lost.iter().map(String::as_str).collect::<Vec<_>>(),
        ["attention_norm.weight", "key.weight", "norm.weight", "query.weight"]
    );

    let mut opt = AdamW::new_lr(varmap.all_vars(), 0.01).unwrap();
    for _ in 0..60 {
        opt.backward_step(&loss_of(model.forward(&tokens), &next)).unwrap();
    }
    let last = loss_of(model.forward(&tokens), &next).to_scalar::<f32>().unwrap();
    assert!(last < 0.1, "from {first_loss} to {last}");
}
