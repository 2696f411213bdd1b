//! The layers of transformers and the operations around their attention.

use std::collections::BTreeMap;

use candelabrum_nn::layers::{MultiHeadAttention, TransformerBlock};
use candelabrum_nn::ops::{
    HiddenUnits, Rotary, embedding, embedding_with_positions, feed_forward, linear, linear_add,
    with_composites,
};
use candelabrum_nn::{Activation, Params};
use candelabrum_testkit::{assert_close, integers};
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{Case, cases, check};
use crate::random;

#[test]
fn feed_forward_branches_are_pytorchs() -> Result<()> {
    for case in cases("feed_forward.safetensors") {
        let units = match &*case.name {
            "gelu" => HiddenUnits::Activation(Activation::Gelu),
            "relu" => HiddenUnits::Activation(Activation::Relu),
            _ => HiddenUnits::SwiGlu,
        };
        let names = ["xs", "up", "up_bias", "down", "down_bias", "residual"];
        check(&case, &names, |t| {
            let (up, down) = ((&t["up"], t.get("up_bias")), (&t["down"], t.get("down_bias")));
            feed_forward(&t["xs"], up, units, down, t.get("residual"))
        })?;
    }
    Ok(())
}

/// More rows than a block has: the values and gradients are those of the separate operations.
#[test]
fn a_feed_forward_branch_in_blocks_is_its_parts() -> Result<()> {
    let (rows, gelu) = (4500, Activation::Gelu);
    let inputs = [random((rows, 3), 1)?, random((7, 3), 2)?, random((3, 7), 3)?, random(7, 4)?];
    let vars = inputs.iter().map(|input| Var::from_tensor(&input.to_dtype(DType::F32)?));
    let vars = vars.collect::<Result<Vec<_>>>()?;
    let [xs, up, down, bias] = [0, 1, 2, 3].map(|i| vars[i].as_tensor());
    let units = HiddenUnits::Activation(gelu);
    let whole = feed_forward(xs, (up, Some(bias)), units, (down, None), Some(xs))?;
    let parts = linear_add(&linear(xs, up, Some(bias), Some(gelu))?, down, None, xs)?;
    assert_close(&whole, &parts, 1e-6, 1e-6);
    let factors = random((rows, 3), 5)?.to_dtype(DType::F32)?;
    let gradients = |ys: &Tensor| (ys * &factors)?.sum_all()?.backward();
    let (whole, parts) = (gradients(&whole)?, gradients(&parts)?);
    for var in &vars {
        let [whole, parts] = [&whole, &parts].map(|grads| grads.get(var).expect("a gradient"));
        assert_close(whole, parts, 1e-4, 1e-4);
    }
    Ok(())
}

#[test]
fn sums_with_a_residual_and_positions_are_pytorchs() -> Result<()> {
    for case in cases("linear_add.safetensors") {
        check(&case, &["xs", "weight", "bias", "residual"], |t| {
            linear_add(&t["xs"], &t["weight"], t.get("bias"), &t["residual"])
        })?;
    }
    for case in cases("embedding_with_positions.safetensors") {
        check(&case, &["weight", "positions"], |t| {
            embedding_with_positions(&t["weight"], &t["positions"], &case.tensors["indices"])
        })?;
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_refused() -> Result<()> {
    let (xs, weight) = (random((2, 3), 1)?, random((4, 3), 2)?);
    let result = linear_add(&xs, &weight, None, &random((2, 3), 3)?);
    assert!(message(result).contains("residual of shape [2, 3] for a result of [2, 4]"));
    let result = linear_add(&xs, &weight.t()?, None, &xs);
    assert!(message(result).contains("input of shape [2, 3] for a weight of [3, 4]"));
    let gelu = HiddenUnits::Activation(Activation::Gelu);
    let branch = |units, down: &Tensor, residual: Option<&Tensor>| {
        message(feed_forward(&xs, (&weight, None), units, (down, None), residual))
    };
    let expected = "weights of shapes [4, 3] and [3, 4] with SwiGlu between them";
    assert!(branch(HiddenUnits::SwiGlu, &weight.t()?, None).contains(expected));
    let expected = "residual of shape [4, 3] for a result of [2, 3]";
    assert!(branch(gelu, &weight.t()?, Some(&weight)).contains(expected));
    let (tokens, table) = (integers((2, 5), 1, 4)?, random((4, 3), 2)?);
    let result = embedding_with_positions(&table, &random((4, 3), 3)?, &tokens);
    assert!(message(result).contains("sequences of 5 tokens, but there are 4 positions"));
    let result = embedding_with_positions(&table, &random((5, 2), 3)?, &tokens);
    assert!(message(result).contains("positions of shape [5, 2] for a weight of [4, 3]"));
    let large = Tensor::new(&[[1u32, 4]], &Device::Cpu)?;
    let expected = message(embedding(&table, &large, None));
    assert_eq!(message(embedding_with_positions(&table, &table, &large)), expected);
    Ok(())
}

/// Compares the result and the gradients of the case's inputs and parameters, by kernel and composite.
fn check_layer(
    case: &Case,
    inputs: &[&str],
    layer: impl Fn(&Params) -> Box<dyn Fn(&[Tensor]) -> Result<Tensor>>,
) -> Result<()> {
    for composite in [false, true] {
        let params = Params::on(0, DType::F64, &Device::Cpu);
        let f = layer(&params);
        let run = |inputs: &[Tensor]| {
            if composite { with_composites(|| f(inputs)) } else { f(inputs) }
        };
        let vars = inputs.iter().map(|name| Var::from_tensor(&case.tensors[*name]));
        let vars = vars.collect::<Result<Vec<_>>>()?;
        let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        run(&tensors)?; // Makes the parameters.
        let of = |prefix: &str| -> BTreeMap<String, Tensor> {
            let own = case.tensors.iter().filter_map(|(name, tensor)| {
                Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))
            });
            own.collect()
        };
        let values = of("param.");
        assert_eq!(params.len(), values.len());
        for (name, value) in &values {
            params.get(name)?.set(value)?;
        }
        let ys = run(&tensors)?;
        assert_close(&ys, &case.tensors["ys"], 1e-12, 1e-12);
        let grads = (ys * &case.tensors["dys"])?.sum_all()?.backward()?;
        for (name, gradient) in &of("dparam.") {
            let grad = grads.get(params.get(name)?.var()).expect("a gradient of each parameter");
            assert_close(grad, gradient, 1e-12, 1e-12);
        }
        for (name, var) in inputs.iter().zip(&vars) {
            let grad = grads.get(var).expect("a gradient of each input");
            assert_close(grad, &case.tensors[&format!("d{name}")], 1e-12, 1e-12);
        }
    }
    Ok(())
}

#[test]
fn layers_are_pytorchs() -> Result<()> {
    for case in cases("transformer_layers.safetensors") {
        if case.name == "cross" {
            check_layer(&case, &["xs", "memory"], |params| {
                let layer = MultiHeadAttention::new(&params.root(), 2);
                Box::new(move |t| layer.forward_to(&t[0], &t[1], None))
            })?;
            continue;
        }
        let causal = case.name == "causal";
        check_layer(&case, &["xs"], |params| {
            let block = TransformerBlock::new(&params.root(), 3).hidden(20);
            let block = if causal { block.causal() } else { block };
            Box::new(move |t| block.forward(&t[0]))
        })?;
    }
    Ok(())
}

#[test]
fn a_block_with_every_option_is_its_composite() -> Result<()> {
    let params = Params::on(5, DType::F64, &Device::Cpu);
    let block = TransformerBlock::new(&params.root(), 4)
        .kv_heads(2)
        .causal()
        .rotary(Rotary::default())
        .rms_norm()
        .swiglu()
        .no_bias()
        .dropout(0.25);
    let xs = random((2, 5, 24), 1)?;
    params.eval();
    let ys = block.forward(&xs)?;
    assert_close(&with_composites(|| block.forward(&xs))?, &ys, 1e-12, 1e-12);
    let names: Vec<String> =
        params.list().iter().map(|p| format!("{} {:?}", p.name(), p.var().dims())).collect();
    let expected = [
        "norm1.weight [24]",
        "attention.qkv.weight [48, 24]",
        "attention.out.weight [24, 24]",
        "norm2.weight [24]",
        "up.weight [128, 24]",
        "down.weight [24, 64]",
    ];
    assert_eq!(names, expected);
    params.train();
    let dropped = block.forward(&xs)?;
    assert!((dropped - &ys)?.abs()?.max_all()?.to_scalar::<f64>()? > 1e-3);
    Ok(())
}

#[test]
fn a_layer_has_one_kind_of_projections_and_heads_that_divide() -> Result<()> {
    let xs = random((2, 5, 8), 1)?;
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let own = MultiHeadAttention::new(&params.root().pp("own"), 2);
    own.forward(&xs)?;
    let expected = "layer `own` projects queries, keys and values of one sequence together";
    assert_eq!(message(own.forward_to(&xs, &xs, None)), expected);
    let other = MultiHeadAttention::new(&params.root().pp("other"), 2);
    other.forward_to(&xs, &xs, None)?;
    let expected = "layer `other` projects queries, keys and values of two sequences apart";
    assert_eq!(message(other.forward(&xs)), expected);
    let odd = MultiHeadAttention::new(&params.root().pp("odd"), 3);
    assert_eq!(message(odd.forward(&xs)), "layer `odd`: 8 features do not divide into 3 heads");
    Ok(())
}
