//! Convolutions of sequences, transposed convolutions and separable ones: gradients, PyTorch, layers, errors.

use candelabrum_nn::layers::{BatchNorm2d, Conv1d, ConvTranspose2d, SeparableConv2d};
use candelabrum_nn::ops::{
    Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig, conv_transpose2d, conv1d, conv2d,
};
use candelabrum_nn::{Activation, FromModule, Model, Params};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::behaviour::message;
use crate::golden::{activation, cases, check};
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

/// Inputs, weights and options of transposed convolutions. On the way back they are convolutions by each of the
/// algorithms.
pub(crate) fn transposed() -> Vec<([usize; 4], [usize; 4], ConvTranspose2dConfig)> {
    let plain = ConvTranspose2dConfig::default();
    vec![
        ([2, 3, 4, 5], [3, 2, 3, 2], plain),
        ([1, 1, 1, 1], [1, 1, 3, 3], plain),
        ([3, 2, 4, 3], [2, 5, 1, 1], plain),
        (
            [2, 2, 4, 3],
            [2, 3, 3, 3],
            ConvTranspose2dConfig { stride: (2, 3), output_padding: (1, 2), ..plain },
        ),
        ([2, 2, 3, 4], [2, 3, 3, 4], ConvTranspose2dConfig { padding: (2, 3), ..plain }),
        ([2, 2, 3, 2], [2, 3, 3, 2], ConvTranspose2dConfig { dilation: (2, 3), ..plain }),
        // The corners of the kernel meet only what is cut off.
        ([9, 4, 1, 1], [4, 3, 3, 3], ConvTranspose2dConfig { padding: (1, 1), ..plain }),
        ([2, 6, 3, 4], [6, 1, 3, 2], ConvTranspose2dConfig { groups: 3, padding: (1, 0), ..plain }),
        ([2, 4, 3, 4], [4, 1, 3, 3], ConvTranspose2dConfig { groups: 4, stride: (2, 1), ..plain }),
        ([9, 4, 3, 3], [4, 3, 1, 1], ConvTranspose2dConfig { groups: 2, ..plain }),
        ([9, 3, 3, 2], [3, 4, 2, 3], plain),
    ]
}

#[test]
fn a_gradient_of_one_input_alone() -> Result<()> {
    for (xs, weight, config) in transposed() {
        let (xs, weight) = (random(&xs[..], 1)?, random(&weight[..], 2)?);
        let of_xs = |t: &[Tensor]| conv_transpose2d(&t[0], &weight, None, config, None);
        gradcheck(of_xs, std::slice::from_ref(&xs), EPS, TOL)?;
        let of_weight = |t: &[Tensor]| conv_transpose2d(&xs, &t[0], None, config, None);
        gradcheck(of_weight, std::slice::from_ref(&weight), EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn transposed_convolutions_are_pytorchs() -> Result<()> {
    for case in cases("conv_transpose2d.safetensors") {
        let [sy, sx, py, px, oy, ox, dy, dx, groups, relu] = case.config()?[..] else {
            panic!("ten numbers")
        };
        let config = ConvTranspose2dConfig {
            stride: (sy, sx),
            padding: (py, px),
            output_padding: (oy, ox),
            dilation: (dy, dx),
            groups,
        };
        check(&case, &["xs", "weight", "bias"], |t| {
            conv_transpose2d(&t["xs"], &t["weight"], t.get("bias"), config, activation(relu))
        })?;
    }
    Ok(())
}

#[test]
fn sequences_are_pytorchs() -> Result<()> {
    for case in cases("conv1d.safetensors") {
        let [stride, padding, dilation, groups, relu] = case.config()?[..] else {
            panic!("five numbers")
        };
        let config = Conv1dConfig { stride, padding, dilation, groups };
        check(&case, &["xs", "weight", "bias"], |t| {
            conv1d(&t["xs"], &t["weight"], t.get("bias"), config, activation(relu))
        })?;
    }
    Ok(())
}

#[test]
fn a_separable_convolution_is_two_layers_of_pytorch() -> Result<()> {
    for case in cases("separable_conv2d.safetensors") {
        let pointwise = Conv2dConfig::default();
        let config = Conv2dConfig { stride: (2, 2), padding: (1, 1), groups: 3, ..pointwise };
        check(&case, &["xs", "depthwise", "pointwise"], |t| {
            let ys = conv2d(&t["xs"], &t["depthwise"], None, config, None)?;
            conv2d(&ys, &t["pointwise"], None, pointwise, None)
        })?;

        let params = Params::on(0, DType::F64, &Device::Cpu);
        let layer = SeparableConv2d::new(&params.root(), 5, 3).stride(2).padding(1);
        layer.forward(&case.tensors["xs"])?;
        params.get("conv1.weight")?.set(&case.tensors["depthwise"])?;
        params.get("pointwise.weight")?.set(&case.tensors["pointwise"])?;
        let ys = layer.forward(&case.tensors["xs"])?;
        assert_close(&ys, &case.tensors["ys"], 1e-12, 1e-12);

        let norm = BatchNorm2d::new(&params.root().pp("norm")).activation(Activation::Relu);
        let apart = layer.forward(&norm.forward(&case.tensors["xs"])?)?;
        let together = layer.forward_normalised(&case.tensors["xs"], &norm)?;
        assert_close(&together, &apart, 1e-12, 1e-12);
    }
    Ok(())
}

#[test]
fn layers_take_their_channels_from_the_first_input() -> Result<()> {
    let params = Params::new(0);
    let (root, relu) = (params.root(), Activation::Relu);
    let conv =
        FromModule(Conv1d::new(&root.pp("conv"), 6, 3).stride(2).padding(1).activation(relu));
    let row = conv.compile(&params, (2, 4, 9))?.layers()[0].clone();
    assert_eq!((row.kind.as_str(), &row.output[..]), ("Conv1d 3, relu", &[2, 6, 5][..]));
    let up = ConvTranspose2d::new(&root.pp("up"), 6, 3).stride(2).padding(1).output_padding(1);
    let up = FromModule(up.groups(2));
    let row = up.compile(&params, (1, 4, 5, 7))?.layers()[0].clone();
    assert_eq!((row.kind.as_str(), &row.output[..]), ("ConvTranspose2d 3×3", &[1, 6, 10, 14][..]));
    let separable = SeparableConv2d::new(&root.pp("separable"), 6, 3).padding(1).bias();
    separable.forward(&Tensor::zeros((1, 4, 5, 5), DType::F32, &Device::Cpu)?)?;

    let list = params.list();
    let shapes: Vec<(&str, &[usize])> = list.iter().map(|p| (p.name(), p.var().dims())).collect();
    let expected: [(&str, &[usize]); 8] = [
        ("conv.weight", &[6, 4, 3]),
        ("conv.bias", &[6]),
        ("up.weight", &[4, 3, 3, 3]),
        ("up.bias", &[6]),
        ("separable.conv1.weight", &[4, 1, 3, 3]),
        ("separable.conv1.bias", &[4]),
        ("separable.pointwise.weight", &[6, 4, 1, 1]),
        ("separable.pointwise.bias", &[6]),
    ];
    assert_eq!(shapes, expected);

    let three = Tensor::zeros((1, 3, 5, 5), DType::F32, &Device::Cpu)?;
    let error = message(separable.forward(&three));
    assert_eq!(error, "layer `separable` takes 4 channels, the input has 3");
    let error = message(up.forward(&three));
    assert_eq!(error, "layer `up` takes 4 channels, the input has 3");
    let error = message(conv.forward(&three));
    assert_eq!(error, "layer `conv`: input of shape [1, 3, 5, 5], expected (N, C, L)");
    let error = message(ConvTranspose2d::new(&root.pp("odd"), 6, 3).groups(2).forward(&three));
    let expected = "layer `odd`: 3 input channels and 6 outputs do not divide into 2 groups";
    assert_eq!(error, expected);
    let error = message(Conv1d::new(&root.pp("odd"), 6, 3).groups(2).forward(&three.get(0)?));
    assert_eq!(error, "layer `odd`: 5 input channels do not divide into 2 groups");
    Ok(())
}

#[test]
fn transposed_convolutions_refuse_what_does_not_fit() -> Result<()> {
    let (xs, plain) = (random((2, 3, 4, 4), 1)?, ConvTranspose2dConfig::default());
    let with = |weight: [usize; 4], config| -> Result<String> {
        Ok(message(conv_transpose2d(&xs, &random(&weight[..], 2)?, None, config, None)))
    };
    let error = with([2, 3, 3, 3], plain)?;
    assert!(
        error.starts_with("conv_transpose2d: weight of shape [2, 3, 3, 3] does not fit"),
        "{error}"
    );
    let error = with([3, 2, 3, 3], ConvTranspose2dConfig { output_padding: (0, 1), ..plain })?;
    assert!(error.contains("output_padding must be smaller than the stride"), "{error}");
    let error = with([3, 2, 1, 1], ConvTranspose2dConfig { padding: (2, 2), ..plain })?;
    assert!(error.contains("nothing is left of the result"), "{error}");
    let error = with([3, 2, 3, 3], ConvTranspose2dConfig { stride: (0, 1), ..plain })?;
    assert!(error.contains("must be positive"), "{error}");
    let error = with([3, 2, 3, 3], ConvTranspose2dConfig { padding: (usize::MAX, 0), ..plain })?;
    assert!(error.contains("nothing is left of the result"), "{error}");
    let (weight, bias) = (random((3, 2, 3, 3), 2)?, random(3, 3)?);
    let error = message(conv_transpose2d(&xs, &weight, Some(&bias), plain, None));
    assert_eq!(error, "conv_transpose2d: bias of shape [3] for 2 outputs");
    Ok(())
}
