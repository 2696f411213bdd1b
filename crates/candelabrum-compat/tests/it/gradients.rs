//! The backward pass of each function and layer of this package, against central differences.

use candelabrum_compat::attention::{self, AttnMask};
use candelabrum_compat::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Embedding, GroupNorm, LayerNorm, Linear, Module,
    RmsNorm, loss, ops, rotary_emb,
};
use candelabrum_testkit::{gradcheck, uniform};
use candle_core::{D, DType, Device, Result, Tensor};

const EPS: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

fn noise(shape: &[usize], seed: u64) -> Tensor {
    uniform(shape, seed, -1.0, 1.0, DType::F64).unwrap()
}

#[track_caller]
fn check(f: impl Fn(&[Tensor]) -> Result<Tensor>, shapes: &[&[usize]]) {
    let inputs: Vec<Tensor> = (1..).zip(shapes).map(|(seed, shape)| noise(shape, seed)).collect();
    gradcheck(f, &inputs, EPS, TOLERANCE).unwrap();
}

#[test]
fn of_layer_norms() {
    check(
        |x| LayerNorm::new(x[1].clone(), x[2].clone(), 1e-3).forward(&x[0]),
        &[&[2, 3, 5], &[5], &[5]],
    );
    check(|x| LayerNorm::new_no_bias(x[1].clone(), 1e-3).forward(&x[0]), &[&[2, 3, 5], &[5]]);
    check(|x| LayerNorm::rms_norm(x[1].clone(), 1e-3).forward(&x[0]), &[&[2, 3, 5], &[5]]);
    check(|x| RmsNorm::new(x[1].clone(), 1e-3).forward(&x[0]), &[&[2, 3, 5], &[5]]);
    check(|x| RmsNorm::new(x[1].clone(), 1e-3).forward_diff(&x[0]), &[&[2, 3, 5], &[5]]);
    check(|x| ops::layer_norm(&x[0], &x[1], &x[2], 1e-3), &[&[2, 3, 5], &[5], &[5]]);
    check(|x| ops::rms_norm(&x[0], &x[1], 1e-3), &[&[2, 3, 5], &[5]]);
}

#[test]
fn of_softmax_and_activations() {
    check(|x| ops::softmax_last_dim(&x[0]), &[&[2, 3, 5]]);
    check(|x| ops::softmax(&x[0], D::Minus1), &[&[2, 3, 5]]);
    check(|x| ops::softmax(&x[0], 1), &[&[2, 3, 5]]);
    check(|x| ops::log_softmax(&x[0], D::Minus1), &[&[2, 3, 5]]);
    check(|x| ops::log_softmax(&x[0], 0), &[&[2, 3, 5]]);
    check(|x| ops::silu(&x[0]), &[&[2, 3, 5]]);
    check(|x| ops::sigmoid(&x[0]), &[&[2, 3, 5]]);
    check(|x| ops::swiglu(&x[0]), &[&[2, 3, 6]]);
}

#[test]
fn of_rotations() {
    let angles = |steps: usize| noise(&[steps, 3], 7);
    let [cos, sin] = [angles(4).cos().unwrap(), angles(4).sin().unwrap()];
    check(|x| rotary_emb::rope(&x[0], &cos, &sin), &[&[2, 2, 4, 6]]);
    check(|x| rotary_emb::rope_i(&x[0], &cos, &sin), &[&[2, 2, 4, 6]]);
    check(|x| rotary_emb::rope_thd(&x[0], &cos, &sin), &[&[2, 4, 2, 6]]);
    // Fewer steps than angles, and angles that are trained.
    check(|x| rotary_emb::rope(&x[0], &cos, &sin), &[&[2, 2, 3, 6]]);
    check(|x| rotary_emb::rope(&x[0], &x[1], &x[2]), &[&[2, 2, 4, 6], &[4, 3], &[4, 3]]);
}

#[test]
fn of_layers_with_products() {
    check(
        |x| Linear::new(x[1].clone(), Some(x[2].clone())).forward(&x[0]),
        &[&[2, 3, 5], &[4, 5], &[4]],
    );
    check(|x| Linear::new(x[1].clone(), None).forward(&x[0]), &[&[5], &[4, 5]]);
    let config = Conv1dConfig { padding: 1, stride: 2, groups: 2, ..Conv1dConfig::default() };
    check(
        |x| Conv1d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0]),
        &[&[2, 4, 7], &[6, 2, 3], &[6]],
    );
    let config = Conv2dConfig { padding: 1, dilation: 2, ..Conv2dConfig::default() };
    check(
        |x| Conv2d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0]),
        &[&[2, 2, 6, 5], &[3, 2, 3, 3], &[3]],
    );
}

#[test]
fn of_embeddings_and_groups() {
    let rows = Tensor::new(&[[1_u32, 0, 1], [3, 3, 2]], &Device::Cpu).unwrap();
    check(|x| Embedding::new(x[0].clone(), 5).forward(&rows), &[&[4, 5]]);
    check(
        |x| GroupNorm::new(x[1].clone(), x[2].clone(), 4, 2, 1e-3)?.forward(&x[0]),
        &[&[2, 4, 3], &[4], &[4]],
    );
}

#[test]
fn of_losses() {
    let classes = Tensor::new(&[2_u32, 0, 4], &Device::Cpu).unwrap();
    check(|x| loss::cross_entropy(&x[0], &classes), &[&[3, 5]]);
    let answers = Tensor::new(&[[0.0_f64, 1.0], [1.0, 0.25]], &Device::Cpu).unwrap();
    check(|x| loss::binary_cross_entropy_with_logit(&x[0], &answers), &[&[2, 2]]);
}

#[test]
fn attention_without_a_backward_pass_refuses_to_be_trained() {
    let xs = noise(&[1, 3, 2, 4], 1).to_dtype(DType::F32).unwrap();
    let trained = candle_core::Var::from_tensor(&xs).unwrap();
    let flash =
        |q: &Tensor| attention::flash_attn::<f32>(q, &xs, &xs, 0.5, AttnMask::None, None, None);
    assert_eq!(flash(&xs).unwrap().dims(), [1, 2, 3, 4]);
    let lengths = Tensor::new(&[3_u32], &Device::Cpu).unwrap();
    let packed = |q: &Tensor| {
        let rows = |tensor: &Tensor| tensor.squeeze(0).unwrap();
        let (q, k) = (rows(q), rows(&xs));
        attention::flash_attn_varlen_cpu(
            &q, &k, &k, None, &lengths, &lengths, 3, 3, 0.5, false, None, None,
        )
    };
    assert!(packed(&xs).is_ok());
    let sdpa = ops::sdpa(&trained, &xs, &xs, None, false, 0.5, 1.0);
    for refused in [flash(&trained), packed(&trained), sdpa] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("no backward pass") && error.contains("detach"), "{error}");
    }
    assert!(flash(&trained.detach()).is_ok());
}
