//! The constructors of this package make the parameters that those of candle-nn make.

use std::collections::BTreeMap;

use candelabrum_compat as ours;
use candle_core::{DType, Device, Result};
use candle_nn::{VarBuilder, VarMap};

/// The names and shapes of what a model asks a builder for.
fn parameters(make: impl Fn(VarBuilder<'_>) -> Result<()>) -> BTreeMap<String, Vec<usize>> {
    let varmap = VarMap::new();
    make(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu)).unwrap();
    let data = varmap.data().lock().unwrap();
    data.iter().map(|(name, var)| (name.clone(), var.dims().to_vec())).collect()
}

/// Each constructor of a crate, under a name of its own.
macro_rules! constructors {
    ($nn:ident) => {
        |vb: VarBuilder<'_>| -> Result<()> {
            drop($nn::linear(3, 4, vb.pp("linear"))?);
            drop($nn::linear_no_bias(3, 4, vb.pp("linear_no_bias"))?);
            drop($nn::linear_b(3, 4, false, vb.pp("linear_b"))?);
            drop($nn::embedding(5, 6, vb.pp("embedding"))?);
            drop($nn::layer_norm(7, 1e-5, vb.pp("layer_norm"))?);
            drop($nn::layer_norm_no_bias(7, 1e-5, vb.pp("layer_norm_no_bias"))?);
            drop($nn::rms_norm(7, 1e-5, vb.pp("rms_norm"))?);
            drop($nn::group_norm(2, 8, 1e-5, vb.pp("group_norm"))?);
            drop($nn::conv1d(3, 4, 5, Default::default(), vb.pp("conv1d"))?);
            drop($nn::conv1d_no_bias(3, 4, 5, Default::default(), vb.pp("conv1d_no_bias"))?);
            drop($nn::conv2d(3, 4, 5, Default::default(), vb.pp("conv2d"))?);
            drop($nn::conv2d_no_bias(3, 4, 5, Default::default(), vb.pp("conv2d_no_bias"))?);
            drop($nn::batch_norm(3, 1e-5, vb.pp("batch_norm"))?);
            Ok(())
        }
    };
}

#[test]
fn have_the_names_and_shapes_of_candles() {
    let here = parameters(constructors!(ours));
    assert_eq!(here, parameters(constructors!(candle_nn)));
    assert_eq!(here.len(), 21);
}
