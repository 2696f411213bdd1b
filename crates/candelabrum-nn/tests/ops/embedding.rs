//! Rows of a table by index.

use candelabrum_nn::layers::Embedding;
use candelabrum_nn::ops::{embedding, linear};
use candelabrum_nn::{Init, Params};
use candelabrum_testkit::assert_close;
use candle_core::{Device, Module, Result, Tensor};

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
fn the_layer_starts_as_it_is_told_and_gives_its_table() -> Result<()> {
    let params = Params::new(0);
    let init = Init::Uniform { low: 2.0, high: 3.0 };
    let layer = Embedding::new(&params.root().pp("words"), 5, 3).init(init);
    let table = layer.weight()?; // There was no input yet.
    assert_eq!((table.name(), table.var().dims()), ("words.weight", &[5, 3][..]));
    let values = table.tensor().flatten_all()?.to_vec1::<f32>()?;
    assert!(values.iter().all(|value| (2.0..=3.0).contains(value)), "{values:?}");
    // A last layer with the table as its weight: both uses add to one gradient.
    let xs = layer.forward(&Tensor::new(&[[1u32, 4]], &Device::Cpu)?)?;
    let grads = linear(&xs, table.tensor(), None, None)?.sum_all()?.backward()?;
    let gradient = grads.get(table.var()).expect("a gradient").to_vec2::<f32>()?;
    let row = |row: usize| -> Result<Vec<f32>> { table.tensor().get(row)?.to_vec1() };
    // The sum of all logits: sum over tokens i and rows v of w_i · w_v.
    for (v, gradient) in gradient.iter().enumerate() {
        for (column, gradient) in gradient.iter().enumerate() {
            let looked_up = row(1)?[column] + row(4)?[column];
            let all = (0..5).map(|row_of| Ok(row(row_of)?[column])).sum::<Result<f32>>()?;
            let expected = looked_up + if v == 1 || v == 4 { all } else { 0.0 };
            assert!((gradient - expected).abs() < 1e-4, "{v}, {column}: {gradient}, {expected}");
        }
    }
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
