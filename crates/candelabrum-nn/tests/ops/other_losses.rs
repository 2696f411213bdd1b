//! Losses but the cross entropies of classes: element by element, NLL, cosines, CTC. And pooling by attention.

use candelabrum_nn::LossWeight;
use candelabrum_nn::layers::AttentionPooling;
use candelabrum_nn::ops::{
    CtcConfig, Reduction, attention_pool, bce_with_logits_loss, cosine_embedding_loss,
    cosine_similarity, ctc_loss, huber_loss, l1_loss, log_softmax, mse_loss, nll_loss,
    smooth_l1_loss, with_composites,
};
use candelabrum_nn::{Init, Params};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{Case, cases, check};
use crate::hooks::each_its_own_unit;
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;
const BOTH: [Reduction; 2] = [Reduction::Mean, Reduction::Sum];

/// A loss of numbers and targets by its PyTorch name, with the parameter of the golden files.
fn loss_called(name: &str, xs: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match name {
        "mse" => mse_loss(xs, targets, reduction),
        "l1" => l1_loss(xs, targets, reduction),
        "huber" => huber_loss(xs, targets, 0.75, reduction),
        "smooth_l1" => smooth_l1_loss(xs, targets, 0.75, reduction),
        _ => bce_with_logits_loss(xs, &targets.detach(), None, reduction),
    }
}

fn reduction_of(case: &Case) -> Reduction {
    if case.name.ends_with("_mean") { Reduction::Mean } else { Reduction::Sum }
}

/// A number that a golden file has beside the inputs.
fn number(case: &Case, name: &str) -> Result<f64> {
    case.tensors[name].to_scalar()
}

#[test]
fn losses_of_differences_are_pytorchs_also_at_ties() -> Result<()> {
    for case in cases("element_losses.safetensors") {
        let mut names = ["smooth_l1", "mse", "l1", "huber"].into_iter();
        let name = names.find(|name| case.name.starts_with(name)).expect("a known loss");
        check(&case, &["xs", "targets"], |t| {
            loss_called(name, &t["xs"], &t["targets"], reduction_of(&case))
        })?;
    }
    Ok(())
}

#[test]
fn binary_cross_entropy_is_pytorchs_also_for_sure_answers() -> Result<()> {
    for case in cases("bce_with_logits.safetensors") {
        check(&case, &["xs"], |t| {
            let dtype = t["xs"].dtype();
            let targets = case.tensors["targets"].to_dtype(dtype)?;
            let weight = case.tensors.get("weight").map(|weight| weight.to_dtype(dtype));
            let weight = weight.transpose()?;
            bce_with_logits_loss(&t["xs"], &targets, weight.as_ref(), reduction_of(&case))
        })?;
    }
    Ok(())
}

#[test]
fn nll_is_pytorchs() -> Result<()> {
    for case in cases("nll.safetensors") {
        let ignored = case.tensors.get("ignore").map(|ignore| ignore.to_scalar::<i64>());
        let ignored = ignored.transpose()?;
        let targets = &case.tensors["targets"];
        check(&case, &["xs"], |t| nll_loss(&t["xs"], targets, ignored, reduction_of(&case)))?;
    }
    Ok(())
}

#[test]
fn cosines_and_their_loss_are_pytorchs() -> Result<()> {
    for case in cases("cosine.safetensors") {
        check(&case, &["left", "right"], |t| {
            let (xs, ys) = (&t["left"], &t["right"]);
            if case.name.starts_with("similarity") {
                return cosine_similarity(xs, ys, number(&case, "eps")?);
            }
            let targets = case.tensors["targets"].to_dtype(xs.dtype())?;
            cosine_embedding_loss(xs, ys, &targets, number(&case, "margin")?, reduction_of(&case))
        })?;
    }
    Ok(())
}

#[test]
fn ctc_is_pytorchs() -> Result<()> {
    for case in cases("ctc.safetensors") {
        let [blank] = case.config()?[..] else { panic!("one number") };
        let zero_infinity = case.name.starts_with("too_short");
        let config = CtcConfig { blank, zero_infinity, reduction: reduction_of(&case) };
        let of = |name: &str| &case.tensors[name];
        check(&case, &["xs"], |t| {
            let log_probs = log_softmax(&t["xs"])?;
            ctc_loss(&log_probs, of("labels"), of("lengths"), of("counts"), config)
        })?;
    }
    Ok(())
}

#[test]
fn pooling_by_attention_is_pytorchs() -> Result<()> {
    for case in cases("attention_pool.safetensors") {
        let lengths = &case.tensors["lengths"];
        check(&case, &["xs", "scores"], |t| attention_pool(&t["xs"], &t["scores"], Some(lengths)))?;
    }
    Ok(())
}

#[test]
fn gradients_of_views() -> Result<()> {
    let weight = random(3, 3)?.abs()?;
    let inputs = [random((3, 5), 1)?, random((5, 3), 2)?];
    let f = |t: &[Tensor]| huber_loss(&t[0].t()?, &t[1], 0.3, Reduction::Mean);
    gradcheck(f, &inputs, EPS, TOL)?;
    let targets = inputs[1].abs()?;
    let f =
        |t: &[Tensor]| bce_with_logits_loss(&t[0].t()?, &targets, Some(&weight), Reduction::Sum);
    gradcheck(f, &inputs[..1], EPS, TOL)?;

    let targets = Tensor::new(&[[1i64, 4], [0, -1], [2, 2]], &Device::Cpu)?;
    for reduction in BOTH {
        let f = |t: &[Tensor]| nll_loss(&t[0].transpose(0, 1)?, &targets, Some(-1), reduction);
        gradcheck(f, &[random((2, 3, 5), 1)?], EPS, TOL)?;
        let signs = Tensor::new(&[1.0, -1.0, -1.0], &Device::Cpu)?;
        let f = |t: &[Tensor]| cosine_embedding_loss(&t[0].t()?, &t[1], &signs, -0.9, reduction);
        gradcheck(f, &[random((5, 3), 1)?, random((3, 5), 2)?], EPS, TOL)?;
    }
    gradcheck(
        |t| cosine_similarity(&t[0], &t[0].flip(&[1])?, 1e-8),
        &[random((3, 4), 1)?],
        EPS,
        TOL,
    )
}

#[test]
fn gradients_of_ctc_without_a_softmax() -> Result<()> {
    let labels = Tensor::new(&[[1u32, 1, 3], [2, 0, 0], [3, 2, 2]], &Device::Cpu)?;
    let counts = Tensor::new(&[3u32, 1, 2], &Device::Cpu)?;
    let lengths = Tensor::new(&[6u8, 4, 5], &Device::Cpu)?;
    for reduction in BOTH {
        let config = CtcConfig { reduction, ..CtcConfig::default() };
        let f = |t: &[Tensor]| ctc_loss(&t[0].transpose(0, 1)?, &labels, &lengths, &counts, config);
        gradcheck(f, &[random((6, 3, 4), 1)?], EPS, TOL)?;
    }
    Ok(())
}

/// All paths of a small case, one by one: those that give the labels when repetitions and then blanks are removed.
#[test]
fn ctc_is_the_sum_over_all_paths() -> Result<()> {
    let (steps, classes) = (5, 3);
    let log_probs = log_softmax(&random((1, steps, classes), 1)?.affine(2.0, 0.0)?)?;
    let xs = log_probs.get(0)?.to_vec2::<f64>()?;
    for labels in [&[][..], &[1], &[1, 2], &[2, 2], &[1, 2, 1], &[1, 1, 1], &[2, 1, 2, 1, 2]] {
        let mut total = 0.0;
        for number in 0..classes.pow(steps as u32) {
            let path: Vec<usize> =
                (0..steps).map(|step| number / classes.pow(step as u32) % classes).collect();
            let mut merged = path.clone();
            merged.dedup();
            merged.retain(|&class| class != 0);
            if merged == labels {
                total += path.iter().zip(&xs).map(|(&class, x)| x[class]).sum::<f64>().exp();
            }
        }
        let most = labels.len().max(1);
        let mut padded: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
        padded.resize(most, 7);
        let padded = Tensor::from_vec(padded, (1, most), &Device::Cpu)?;
        let count = Tensor::new(&[labels.len() as u32], &Device::Cpu)?;
        let length = Tensor::new(&[steps as u32], &Device::Cpu)?;
        let config = CtcConfig { reduction: Reduction::Sum, ..CtcConfig::default() };
        let loss = || ctc_loss(&log_probs, &padded, &length, &count, config)?.to_scalar::<f64>();
        for loss in [loss()?, with_composites(loss)?] {
            assert!((loss + total.ln()).abs() < 1e-12, "{labels:?}: {loss}, {}", -total.ln());
        }
    }
    Ok(())
}

#[test]
fn a_ctc_loss_without_a_path_is_infinite_or_zero() -> Result<()> {
    let labels = Tensor::new(&[[1u32, 1], [1, 2]], &Device::Cpu)?;
    let counts = Tensor::new(&[2u32, 2], &Device::Cpu)?;
    for lengths in [[2u32, 2], [0, 2]] {
        let lengths = Tensor::new(&lengths, &Device::Cpu)?;
        let log_probs = Var::from_tensor(&log_softmax(&random((2, 2, 3), 1)?)?)?;
        let loss = |zero_infinity| {
            let config = CtcConfig { zero_infinity, ..CtcConfig::default() };
            ctc_loss(&log_probs, &labels, &lengths, &counts, config)
        };
        for infinite in [loss(false)?, with_composites(|| loss(false))?] {
            assert_eq!(infinite.to_scalar::<f64>()?, f64::INFINITY);
        }
        let zeroed = loss(true)?;
        assert!(zeroed.to_scalar::<f64>()?.is_finite());
        let grads = zeroed.backward()?;
        let gradient = grads.get(&log_probs).expect("a gradient").abs()?.sum((1, 2))?;
        let [first, second] = gradient.to_vec1::<f64>()?[..] else { panic!("two sequences") };
        assert!(first == 0.0 && second > 0.0, "{first}, {second}");
    }
    Ok(())
}

#[test]
fn a_loss_weighs_what_its_mean_counts_and_a_sum_weighs_one() -> Result<()> {
    let (xs, ys) = (random((4, 3), 1)?, random((4, 3), 2)?);
    let targets = Tensor::new(&[0i64, -1, 2, -1], &Device::Cpu)?;
    let signs = Tensor::new(&[1.0, -1.0, 1.0, 1.0], &Device::Cpu)?;
    let lengths = Tensor::new(&[3u32, 2], &Device::Cpu)?;
    let losses = |reduction| -> Result<[Tensor; 8]> {
        let config = CtcConfig { reduction, ..CtcConfig::default() };
        let labels = Tensor::new(&[[1u32], [2]], &Device::Cpu)?;
        let counts = Tensor::new(&[1u32, 1], &Device::Cpu)?;
        Ok([
            mse_loss(&xs, &ys, reduction)?,
            l1_loss(&xs, &ys, reduction)?,
            huber_loss(&xs, &ys, 1.0, reduction)?,
            smooth_l1_loss(&xs, &ys, 0.0, reduction)?,
            bce_with_logits_loss(&xs, &ys, None, reduction)?,
            nll_loss(&xs, &targets, Some(-1), reduction)?,
            cosine_embedding_loss(&xs, &ys, &signs, 0.0, reduction)?,
            ctc_loss(&random((2, 3, 3), 1)?, &labels, &lengths, &counts, config)?,
        ])
    };
    let weights = |losses: [Tensor; 8]| -> Result<Vec<(f64, bool, Option<i64>)>> {
        let weight = |loss: &Tensor| LossWeight::from_loss(loss).expect("every loss has a weight");
        let weights = losses.iter().map(weight);
        weights.map(|weight| Ok((weight.value()?, weight.varies(), weight.ignored()))).collect()
    };
    for composite in [false, true] {
        let run = |reduction| {
            if composite { with_composites(|| losses(reduction)) } else { losses(reduction) }
        };
        let means = weights(run(Reduction::Mean)?)?;
        let (numbers, pairs) = ((12.0, false, None), (4.0, false, None));
        assert_eq!(means[..5], [numbers; 5]);
        assert_eq!(means[5..], [(2.0, true, Some(-1)), pairs, (2.0, false, None)]);
        assert_eq!(weights(run(Reduction::Sum)?)?, [(1.0, false, None); 8]);
    }
    Ok(())
}

/// The gradient of the mean over a batch is the weighted mean of those of its parts.
#[test]
fn parts_of_a_batch_make_the_gradient_of_the_batch() -> Result<()> {
    let line = Var::from_tensor(&random((5, 3), 1)?)?;
    let (xs, ys) = (random((7, 3), 2)?, random((7, 5), 3)?);
    let labels = Tensor::new(&[0i64, 4, -1, 2, -1, -1, 3], &Device::Cpu)?;
    let gradient = |first: usize, rows: usize, kind: usize| -> Result<(Tensor, f64)> {
        let outputs = xs.narrow(0, first, rows)?.matmul(&line.t()?)?;
        let targets = ys.narrow(0, first, rows)?;
        let loss = match kind {
            0 => huber_loss(&outputs, &targets, 0.4, Reduction::Mean)?,
            1 => bce_with_logits_loss(&outputs, &targets, None, Reduction::Mean)?,
            _ => nll_loss(&outputs, &labels.narrow(0, first, rows)?, Some(-1), Reduction::Mean)?,
        };
        let weight = LossWeight::from_loss(&loss).expect("a loss has a weight").value()?;
        Ok((loss.backward()?.get(&line).expect("a gradient").clone(), weight))
    };
    for kind in 0..3 {
        let (whole, all) = gradient(0, 7, kind)?;
        let parts = [gradient(0, 2, kind)?, gradient(2, 4, kind)?, gradient(6, 1, kind)?];
        let mut sum = whole.zeros_like()?;
        for (gradient, weight) in &parts {
            sum = (sum + (gradient * *weight)?)?;
        }
        assert_eq!(parts.iter().map(|(_, weight)| weight).sum::<f64>(), all);
        assert_close(&(sum / all)?, &whole, 1e-12, 1e-12);
    }
    Ok(())
}

#[test]
fn a_backward_pass_learns_of_a_mean_that_leaves_rows_out_and_of_no_sum() -> Result<()> {
    let params = Params::new(0);
    let weight = params.root().param("w", (4, 5), Init::ZEROS)?;
    let targets = Tensor::new(&[0u32, 3, 7, 1], &Device::Cpu)?;
    for (reduction, varies) in [(Reduction::Mean, true), (Reduction::Sum, false)] {
        let loss = nll_loss(weight.tensor(), &targets, Some(7), reduction)?;
        let mut gradients = each_its_own_unit(&params)?;
        gradients.backward(&loss)?;
        assert_eq!(gradients.met_varying_loss(), varies);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let (xs, ys) = (random((3, 4), 1)?, random((3, 5), 2)?);
    let error = message(mse_loss(&xs, &ys, Reduction::Mean));
    assert_eq!(error, "mse_loss: targets of shape [3, 5] for [3, 4]");
    let nothing = random((0, 4), 1)?;
    let error = message(l1_loss(&nothing, &nothing, Reduction::Sum));
    assert_eq!(error, "l1_loss: nothing to take the mean of, an input of shape [0, 4]");
    for delta in [0.0, -1.0, f64::NAN] {
        let error = message(huber_loss(&xs, &xs, delta, Reduction::Mean));
        assert!(error.contains("expected a number above 0"), "{error}");
    }
    assert!(message(smooth_l1_loss(&xs, &xs, -0.1, Reduction::Mean)).contains("from 0 on"));
    let targets = Var::from_tensor(&xs)?;
    let error = message(bce_with_logits_loss(&xs, &targets, None, Reduction::Mean));
    assert!(error.contains("no gradient for the targets"), "{error}");
    let error = message(nll_loss(&xs, &xs, None, Reduction::Mean));
    assert!(error.starts_with("nll_loss: targets of shape [3, 4] and dtype F64"), "{error}");
    let error = message(cosine_similarity(&xs, &ys, 1e-8));
    assert_eq!(error, "cosine_similarity: vectors of shape [3, 4] and [3, 5]");

    let log_probs = random((2, 3, 4), 1)?;
    let one = Tensor::new(&[1u32, 1], &Device::Cpu)?;
    let run = |labels: &[[i64; 2]; 2], lengths: &[i64; 2], counts: &[i64; 2], blank| {
        let tensor = |values: &[i64; 2]| Tensor::new(values, &Device::Cpu);
        let labels = Tensor::new(labels, &Device::Cpu)?;
        let config = CtcConfig { blank, ..CtcConfig::default() };
        ctc_loss(&log_probs, &labels, &tensor(lengths)?, &tensor(counts)?, config)
    };
    let labels = [[1, 2], [3, 9]];
    assert!(run(&labels, &[3, 3], &[2, 1], 0).is_ok());
    let error = message(run(&labels, &[3, 3], &[2, 2], 0));
    assert_eq!(error, "ctc_loss: label 9 of sequence 1, expected a class below 4 but the blank 0");
    let error = message(run(&labels, &[3, 3], &[2, 1], 2));
    assert_eq!(error, "ctc_loss: label 2 of sequence 0, expected a class below 4 but the blank 2");
    let error = message(run(&labels, &[3, 4], &[2, 1], 0));
    assert_eq!(error, "ctc_loss: input length 4 of sequence 1, expected 0 to 3");
    let error = message(run(&labels, &[3, 3], &[-1, 1], 0));
    assert_eq!(error, "ctc_loss: label length -1 of sequence 0, expected 0 to 2");
    assert!(message(run(&labels, &[3, 3], &[2, 1], 4)).contains("blank 4"));
    let error = message(attention_pool(&log_probs, &random((2, 4), 1)?, None));
    assert_eq!(error, "attention_pool: scores of shape [2, 4] for [2, 3, 4]");
    let error = message(attention_pool(&log_probs, &random((2, 3), 1)?, Some(&one.unsqueeze(0)?)));
    assert_eq!(error, "attention_pool: length of shape [1, 2], expected [2]");
    Ok(())
}

#[test]
fn a_layer_pools_by_attention_and_reads_no_padding() -> Result<()> {
    let params = Params::on(1, DType::F64, &Device::Cpu);
    let layer = AttentionPooling::new(&params.root().pp("attention"), 4);
    let xs = random((3, 5, 6), 1)?;
    let lengths = Tensor::new(&[2u32, 5, 0], &Device::Cpu)?;
    let ys = layer.forward_lengths(&xs, &lengths)?;
    assert_close(&ys.get(0)?, &layer.forward(&xs.narrow(1, 0, 2)?)?.get(0)?, 1e-14, 1e-14);
    assert_close(&ys.get(1)?, &layer.forward(&xs)?.get(1)?, 1e-14, 1e-14);
    assert_eq!(ys.get(2)?.to_vec1::<f64>()?, [0.0; 6]);
    // The equations of the paper, in candle's operations.
    let of = |name: &str| Ok::<_, candle_core::Error>(params.get(name)?.tensor().clone());
    let hidden = xs.get(1)?.matmul(&of("attention.projection.weight")?.t()?)?;
    let hidden = hidden.broadcast_add(&of("attention.projection.bias")?)?.tanh()?;
    let scores = hidden.matmul(&of("attention.context.weight")?.t()?)?.exp()?; // (T, 1)
    let expected =
        (xs.get(1)?.broadcast_mul(&scores)?.sum(0)? / scores.sum_all()?.to_scalar::<f64>()?)?;
    assert_close(&ys.get(1)?, &expected, 1e-13, 1e-13);
    Ok(())
}

#[test]
fn halves_are_computed_in_f32() -> Result<()> {
    let (xs, ys) =
        (random((3, 4), 1)?.to_dtype(DType::F16)?, random((3, 4), 2)?.to_dtype(DType::F16)?);
    let loss = mse_loss(&xs, &ys, Reduction::Mean)?;
    let wide = mse_loss(&xs.to_dtype(DType::F32)?, &ys.to_dtype(DType::F32)?, Reduction::Mean)?;
    assert_eq!((loss.dtype(), loss.to_scalar::<f32>()?), (DType::F32, wide.to_scalar::<f32>()?));
    Ok(())
}
