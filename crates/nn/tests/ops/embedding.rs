//! Rows of a table by index.

use candelabrum_nn::Params;
use candelabrum_nn::layers::Embedding;
use candelabrum_nn::ops::embedding;
use candelabrum_testkit::{assert_close, gradcheck, integers};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

#[test]
fn embedding_is_pytorchs_with_repeated_and_padding_indices() -> Result<()> {
    for case in cases("embedding.safetensors") {
        let padding = case.config()?.first().copied();
        let indices = &case.tensors["indices"];
        check(&case, &["weight"], |t| embedding(&t["weight"], indices, padding))?;
    }
    Ok(())
}

#[test]
fn gradients_of_views_and_every_index_type() -> Result<()> {
    let weight = random((3, 9), 1)?;
    let indices = integers((4, 3), 2, 5)?.t()?;
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let indices = indices.to_dtype(dtype)?;
        let f = |t: &[Tensor]| embedding(&t[0].t()?.narrow(0, 2, 5)?, &indices, None)?.t();
        gradcheck(f, std::slice::from_ref(&weight), 1e-5, 1e-7)?;
    }
    Ok(())
}

#[test]
fn indices_out_of_range_and_of_no_integer_type_are_named() -> Result<()> {
    let weight = random((4, 3), 1)?;
    let error = message(embedding(&weight, &Tensor::new(&[0u32, 4], &Device::Cpu)?, None));
    assert_eq!(error, "embedding: index 4 at 1, but there are 4 rows");
    let error = message(embedding(&weight, &Tensor::new(&[-1i64], &Device::Cpu)?, None));
    assert_eq!(error, "embedding: index -1 at 0, but there are 4 rows");
    let error = message(embedding(&weight, &Tensor::new(&[1f32], &Device::Cpu)?, None));
    assert_eq!(error, "embedding: indices of dtype F32, expected u8, u32 or i64");
    let error = message(embedding(&weight, &Tensor::new(&[1u32], &Device::Cpu)?, Some(4)));
    assert_eq!(error, "embedding: padding index 4, but there are 4 rows");
    Ok(())
}

#[test]
fn the_layer_starts_normal_with_a_zero_padding_row() -> Result<()> {
    let params = Params::new(0);
    let layer = Embedding::new(&params.root().pp("words"), 100, 50).padding_index(7);
    let ys = layer.forward(&Tensor::new(&[[7u32, 0, 7]], &Device::Cpu)?)?;
    assert_eq!(ys.dims(), [1, 3, 50]);
    assert_eq!(ys.narrow(1, 0, 1)?.abs()?.sum_all()?.to_scalar::<f32>()?, 0.0);
    let list = params.list();
    assert_eq!(list[0].name(), "words.weight");
    let variance = list[0].tensor().sqr()?.mean_all()?;
    assert_close(&variance, &Tensor::new(1f32, &Device::Cpu)?, 0.0, 0.1);
    Ok(())
}
