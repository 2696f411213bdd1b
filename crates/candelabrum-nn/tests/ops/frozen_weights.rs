//! Weights that nothing trains: in few bits, or below an adapter.

use candelabrum_nn::layers::{Embedding, FeedForward, Linear};
use candelabrum_nn::ops::{
    CrossEntropyConfig, linear, linear_quantized, with_composites, with_independent_rows,
};
use candelabrum_nn::{
    Activation, InitialValues, LoraConfig, LoraLayers, Model, Params, QuantizedMatrix, Result,
};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result as CandleResult, Shape, Tensor, Var};
use proptest::prelude::*;

use crate::random;

const FORMATS: [GgmlDType; 4] = [GgmlDType::F16, GgmlDType::Q8_0, GgmlDType::Q4_1, GgmlDType::Q5_0];

fn quantized((rows, columns): (usize, usize), format: GgmlDType) -> CandleResult<QuantizedMatrix> {
    let values = random((rows, columns), 5)?.to_dtype(DType::F32)?;
    QuantizedMatrix::new(QTensor::quantize(&values, format)?)
}

#[test]
fn a_quantised_product_is_that_of_the_dequantised_matrix() -> CandleResult<()> {
    // More rows than are dequantised at a time, and a part of them.
    for (rows, inputs, outputs) in [(1, 32, 1), (3, 64, 40), (5, 2048, 300), (0, 32, 3)] {
        for format in FORMATS {
            let weight = quantized((outputs, inputs), format)?;
            let xs = Var::from_tensor(&random((rows, inputs), 1)?)?;
            let bias = Var::from_tensor(&random(outputs, 2)?)?;
            let dense = weight.dequantize(DType::F64, &Device::Cpu)?;
            let few = linear_quantized(&xs, &weight, Some(&bias))?;
            let whole = linear(&xs, &dense, Some(&bias), None)?;
            assert_close(&few, &whole, 0.0, 1e-9);
            let composite = with_composites(|| linear_quantized(&xs, &weight, Some(&bias)))?;
            assert_close(&few, &composite, 0.0, 1e-9);
            if rows == 0 {
                continue;
            }
            let [few, whole] = [few, whole].map(|ys| ys.sqr()?.sum_all()?.backward());
            let (few, whole) = (few?, whole?);
            for var in [&xs, &bias] {
                let [few, whole] = [&few, &whole].map(|grads| grads.get(var).expect("a gradient"));
                assert_close(few, whole, 0.0, 1e-8);
            }
        }
    }
    let weight = quantized((3, 32), GgmlDType::Q8_0)?;
    let error = linear_quantized(&random((2, 31), 1)?, &weight, None).unwrap_err().to_string();
    assert!(error.contains("input of shape [2, 31] for a weight of (3, 32)"), "{error}");
    Ok(())
}

#[test]
fn gradients_of_a_quantised_product() -> CandleResult<()> {
    let weight = quantized((3, 32), GgmlDType::Q4_1)?;
    let inputs = [random((2, 32), 1)?, random(3, 2)?];
    gradcheck(|t| linear_quantized(&t[0], &weight, Some(&t[1])), &inputs, 1e-5, 1e-7)
}

#[test]
fn rows_of_a_quantised_table_are_those_of_the_dequantised_one() -> CandleResult<()> {
    let table = quantized((9, 32), GgmlDType::Q8_0)?;
    let indices = Tensor::new(&[[8_u32, 0, 3], [3, 3, 1]], &Device::Cpu)?;
    let rows = table.rows_at(&indices)?;
    assert_eq!(rows.dims(), [2, 3, 32]);
    let dense = table.dequantize(DType::F32, &Device::Cpu)?;
    let dense = dense.embedding(&indices.flatten_all()?)?;
    assert_close(&rows.flatten_to(1)?, &dense, 0.0, 0.0);
    let error = table.rows_at(&Tensor::new(&[9_u32], &Device::Cpu)?).unwrap_err().to_string();
    assert!(error.contains("index 9, but there are 9 rows"), "{error}");
    Ok(())
}

/// Gives every matrix in few bits.
struct InFewBits;

impl InitialValues for InFewBits {
    fn variable(&self, _: &str, _: &Shape, _: DType, _: &Device) -> CandleResult<Option<Var>> {
        Ok(None)
    }

    fn quantized(
        &self,
        _: &str,
        dims: (usize, usize),
        _: &Device,
    ) -> CandleResult<Option<QuantizedMatrix>> {
        quantized(dims, GgmlDType::Q8_0).map(Some)
    }
}

/// An embedding, a feed-forward branch, and a last layer.
struct Net(Embedding, FeedForward, Linear);

impl Net {
    fn new(params: &Params) -> Self {
        let root = params.root();
        Self(
            Embedding::new(&root.pp("table"), 11, 32),
            FeedForward::new(&root.pp("block")).hidden(64),
            Linear::new(&root.pp("head"), 5).activation(Activation::Tanh),
        )
    }
}

impl Model for Net {
    fn forward(&self, tokens: &Tensor) -> CandleResult<Tensor> {
        let xs = self.0.forward(tokens)?;
        self.2.forward(&self.1.forward_add(&xs, &xs)?)
    }
}

#[test]
fn a_network_in_few_bits_has_no_parameters_but_biases() -> Result<()> {
    let params = Params::new(1);
    params.set_initial_values(Some(std::sync::Arc::new(InFewBits)));
    let net = Net::new(&params);
    let tokens = Tensor::new(&[[3_u32, 10, 0]], &Device::Cpu)?;
    net.forward(&tokens)?;
    let names: Vec<String> = params.list().iter().map(|param| param.name().to_owned()).collect();
    assert_eq!(names, ["block.up.bias", "block.down.bias", "head.bias"]);
    let constants: Vec<String> = params.constants().into_iter().map(|(name, _)| name).collect();
    assert_eq!(constants, ["table.weight", "block.up.weight", "block.down.weight", "head.weight"]);
    assert!(net.0.weight().unwrap_err().to_string().contains("`table` has a quantised table"));
    assert!(net.2.weight().is_none() && net.2.bias().is_some());
    let layers = LoraLayers::attach(&params, &LoraConfig { rank: 2, ..Default::default() })?;
    assert_eq!(layers.names(), ["block.up", "block.down", "head"]);
    assert!(
        layers.merge().unwrap_err().to_string().contains("`block.up`, whose weight is quantised")
    );
    // Labels (..) with the loss of a last layer.
    let head = Linear::new(&params.root().pp("last"), 4);
    let xs = random((3, 32), 1)?.to_dtype(DType::F32)?;
    let labels = Tensor::new(&[1_u32, 3, 0], &Device::Cpu)?;
    let loss = head.cross_entropy(&xs, &labels, CrossEntropyConfig::default())?;
    let logits = head.forward(&xs)?;
    let whole = candelabrum_nn::ops::softmax_cross_entropy(&logits, &labels)?;
    assert_close(&loss, &whole, 0.0, 1e-6);
    Ok(())
}

#[test]
fn adapters_start_without_effect_and_are_all_that_learns() -> Result<()> {
    for dora in [false, true] {
        let params = Params::new(1);
        let net = Net::new(&params);
        let tokens = Tensor::new(&[[3_u32, 10, 0], [1, 1, 7]], &Device::Cpu)?;
        let before = net.forward(&tokens)?;
        let config = LoraConfig {
            rank: 3,
            targets: vec!["up".into(), "head".into()],
            trained: vec!["table".into()],
            dora,
            ..Default::default()
        };
        LoraLayers::attach(&params, &config)?;
        assert_close(&net.forward(&tokens)?, &before, 0.0, 1e-6);
        let mut names: Vec<String> =
            params.trainable().iter().map(|param| param.name().to_owned()).collect();
        names.retain(|name| !name.contains("magnitude"));
        let adapters = ["block.up.lora_A.weight", "block.up.lora_B.weight"];
        let [head_a, head_b] = ["head.lora_A.weight", "head.lora_B.weight"];
        assert_eq!(names, [&["table.weight"], &adapters[..], &[head_a, head_b]].concat());
        let grads = net.forward(&tokens)?.sqr()?.sum_all()?.backward()?;
        for param in params.list() {
            let has = grads.get(param.var()).is_some();
            assert_eq!(has, !param.is_frozen(), "{}", param.name());
        }
        let again = LoraLayers::attach(&params, &config).unwrap_err().to_string();
        assert!(again.contains("a second set of adapters") && again.contains("`block.up`"));
        let other = LoraConfig { targets: vec!["down".into()], trained: Vec::new(), ..config };
        assert!(LoraLayers::attach(&params, &other).is_err());
        assert!(!params.get("block.up.lora_A.weight")?.is_frozen());
    }
    Ok(())
}

#[test]
fn gradients_of_adapters_are_slopes() -> Result<()> {
    for dora in [false, true] {
        let params = Params::on(1, DType::F64, &Device::Cpu);
        let layer = Linear::new(&params.root().pp("layer"), 4);
        let xs = random((3, 5), 1)?;
        layer.forward(&xs)?;
        let config = LoraConfig { rank: 2, dora, ..Default::default() };
        LoraLayers::attach(&params, &config)?;
        for (param, seed) in params.trainable().into_iter().zip(10..) {
            param.set(&random(param.var().shape(), seed)?)?;
        }
        // DoRA's norm is a constant in the gradient (section 4.3 of the paper), so the slopes of a fixed norm count.
        let loss = |xs: &Tensor| layer.forward(xs)?.sqr()?.sum_all();
        let grads = loss(&xs)?.backward()?;
        for param in params.trainable() {
            if dora && !param.name().ends_with("magnitude_vector") {
                continue;
            }
            let values = param.var().flatten_all()?.to_vec1::<f64>()?;
            let gradient = grads.get(param.var()).expect("a gradient").flatten_all()?;
            let gradient = gradient.to_vec1::<f64>()?;
            for (at, gradient) in gradient.into_iter().enumerate() {
                let moved = |step: f64| -> Result<f64> {
                    let mut values = values.clone();
                    values[at] += step;
                    param.set(&Tensor::from_vec(values, param.var().shape(), &Device::Cpu)?)?;
                    Ok(loss(&xs)?.to_scalar::<f64>()?)
                };
                let slope = (moved(1e-5)? - moved(-1e-5)?) / 2e-5;
                moved(0.0)?;
                assert!((slope - gradient).abs() < 1e-6, "{}: {slope} {gradient}", param.name());
            }
        }
    }
    Ok(())
}

#[test]
fn an_adapter_in_one_operation_is_that_of_its_parts() -> Result<()> {
    for quantizes in [false, true] {
        let params = Params::on(1, DType::F64, &Device::Cpu);
        if quantizes {
            params.set_initial_values(Some(std::sync::Arc::new(InFewBits)));
        }
        let layer = Linear::new(&params.root().pp("layer"), 4);
        let [xs, residual] = [random((2, 3, 32), 1)?, random((2, 3, 4), 2)?];
        let [xs, residual] = [Var::from_tensor(&xs)?, Var::from_tensor(&residual)?];
        layer.forward(&xs)?;
        params.get("layer.bias")?.set(&random(4, 3)?)?;
        LoraLayers::attach(&params, &LoraConfig { rank: 2, alpha: 3.0, ..Default::default() })?;
        for (param, seed) in params.trainable().into_iter().zip(10..) {
            param.set(&random(param.var().shape(), seed)?)?;
        }
        let run = || layer.forward_add(&xs, &residual)?.sqr()?.sum_all();
        let (fused, parts) = (run()?, with_composites(run)?);
        assert_close(&fused, &parts, 1e-12, 0.0);
        let (fused, parts) = (fused.backward()?, parts.backward()?);
        let adapter = params.trainable();
        for var in adapter.iter().map(|param| param.var()).chain([&xs, &residual]) {
            let [fused, parts] = [&fused, &parts].map(|grads| grads.get(var).expect("a gradient"));
            assert_close(fused, parts, 1e-10, 1e-12);
        }
    }
    Ok(())
}

#[test]
fn adapters_that_cannot_be_are_refused() -> Result<()> {
    let params = Params::new(1);
    Linear::new(&params.root().pp("body.layer"), 4)
        .forward(&random((3, 5), 1)?.to_dtype(DType::F32)?)?;
    let base = LoraConfig::default();
    let dropped = LoraConfig { dropout: 0.5, ..base.clone() };
    for (config, word) in [
        (LoraConfig { rank: 0, ..base.clone() }, "a rank of 0"),
        (LoraConfig { alpha: -1.0, ..base.clone() }, "an alpha of -1"),
        (LoraConfig { dropout: 1.0, ..base.clone() }, "a dropout of 1"),
        (LoraConfig { dora: true, ..dropped }, "DoRA with dropout"),
        (LoraConfig { targets: Vec::new(), ..base.clone() }, "no layers"),
        (LoraConfig { targets: vec!["q_proj".into()], ..base.clone() }, "there are body.layer"),
        (
            LoraConfig {
                targets: vec!["layer".into()],
                trained: vec!["body.*".into()],
                ..base.clone()
            },
            "`body.layer` both among its targets and trained as a whole",
        ),
        (LoraConfig { trained: vec!["head".into()], ..base }, "\"head\""),
    ] {
        let error = LoraLayers::attach(&params, &config).unwrap_err().to_string();
        assert!(error.starts_with("LoRA cannot have ") && error.contains(word), "{error}");
        assert_eq!(params.trainable_count(), 24, "nothing is frozen: {error}");
    }
    Ok(())
}

/// The values of a file that has one weight.
struct OneWeight;

impl InitialValues for OneWeight {
    fn variable(
        &self,
        name: &str,
        shape: &Shape,
        _: DType,
        _: &Device,
    ) -> CandleResult<Option<Var>> {
        let values = || Var::from_tensor(&random(shape, 7)?.to_dtype(DType::F32)?);
        (name == "body.weight").then(values).transpose()
    }

    fn quantized(
        &self,
        _: &str,
        _: (usize, usize),
        _: &Device,
    ) -> CandleResult<Option<QuantizedMatrix>> {
        Ok(None)
    }
}

/// Layers of which one has its weight from a file, in the state after loading.
fn half_loaded() -> Result<(Params, [Linear; 2], Tensor)> {
    let params = Params::new(1);
    params.set_initial_values(Some(std::sync::Arc::new(OneWeight)));
    let layers = ["body", "head"].map(|name| Linear::new(&params.root().pp(name), 5));
    let xs = random((3, 5), 1)?.to_dtype(DType::F32)?;
    layers[1].forward(&layers[0].forward(&xs)?)?;
    params.set_initial_values(None);
    Ok((params, layers, xs))
}

#[test]
fn numbers_that_no_file_has_are_not_frozen() -> Result<()> {
    let (params, _, _) = half_loaded()?;
    let config = LoraConfig { rank: 2, targets: vec!["body".into()], ..Default::default() };
    let error = LoraLayers::attach(&params, &config).unwrap_err().to_string();
    assert!(error.contains("`head.weight` frozen") && error.contains("`head` in"), "{error}");
    assert_eq!(params.trainable().len(), 4, "nothing is frozen");
    LoraLayers::attach(&params, &LoraConfig { trained: vec!["head".into()], ..config.clone() })?;
    // Values that were given since are not random.
    let (params, _, _) = half_loaded()?;
    let head = params.get("head.weight")?;
    head.set(&head.var().as_detached_tensor().copy()?)?;
    LoraLayers::attach(&params, &config)?;
    Ok(())
}

#[test]
fn a_merge_leaves_no_trace_and_nothing_changes_what_is_merged() -> Result<()> {
    for dora in [false, true] {
        let (params, layers, xs) = half_loaded()?;
        let trained = vec!["head".to_owned()];
        let config = LoraConfig { rank: 2, trained, dora, ..Default::default() };
        let adapters = LoraLayers::attach(&params, &config)?;
        let b = params.get("body.lora_B.weight")?;
        b.set(&random((5, 2), 3)?.to_dtype(DType::F32)?)?;
        let weight = params.get("body.weight")?;
        assert!(weight.is_constant());
        let apart = layers[0].forward(&xs)?;
        adapters.merge()?;
        adapters.merge()?;
        assert_close(&layers[0].forward(&xs)?, &apart, 1e-5, 1e-5);
        assert!(!weight.is_constant(), "the files do not have the sum");
        for param in [&weight, &b] {
            let values = param.var().as_detached_tensor().copy()?;
            let error = param.set(&values).unwrap_err().to_string();
            assert!(error.contains("while its adapter is merged"), "{error}");
        }
        adapters.unmerge()?;
        adapters.unmerge()?;
        assert!(weight.is_constant(), "the values are those of the files again");
        assert_close(&layers[0].forward(&xs)?, &apart, 0.0, 0.0);
        b.set(&b.var().as_detached_tensor().copy()?)?;
    }
    Ok(())
}

#[test]
fn independent_rows_may_be_none_or_empty() -> Result<()> {
    for (rows, inputs) in [(0, 3), (2, 0)] {
        let (xs, weight) = (random((rows, inputs), 1)?, random((4, inputs), 2)?);
        let gelu = Some(Activation::Gelu);
        let ys = with_independent_rows(|| linear(&xs, &weight, None, gelu))?;
        assert_eq!(ys.to_vec2::<f64>()?, vec![vec![0.0; 4]; rows]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_row_alone_has_the_bits_that_it_has_among_others(
        rows in 1usize..200,
        inputs in prop_oneof![1usize..40, 250usize..600],
        outputs in 1usize..90,
    ) {
        let numbers = |shape: (usize, usize), seed| {
            random(shape, seed).and_then(|xs| xs.to_dtype(DType::F32)).expect("numbers")
        };
        let (xs, weight) = (numbers((rows, inputs), 1), numbers((outputs, inputs), 2));
        let bits = |xs: &Tensor| {
            with_independent_rows(|| linear(xs, &weight, None, Some(Activation::Gelu)))
                .and_then(|ys| ys.to_vec2::<f32>())
                .expect("a product")
        };
        let all = bits(&xs);
        for row in [0, rows / 2, rows - 1] {
            prop_assert_eq!(&bits(&xs.narrow(0, row, 1).expect("a row"))[0], &all[row]);
        }
    }
}
