//! The layers of transformers and the operations around their attention.

use candelabrum_nn::layers::{MultiHeadAttention, TransformerBlock};
use candelabrum_nn::ops::{
    HiddenUnits, Rotary, embedding, embedding_with_positions, feed_forward, linear_add,
    with_composites,
};
use candelabrum_nn::{Activation, Params};
use candelabrum_testkit::{assert_close, integers};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::behaviour::message;
use crate::random;

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
