//! The table of all operations. Each case has the gradients of central differences, and the same results and gradients by its
//! kernel, by its composite, in 16 bits, and on a GPU.

use std::sync::{Arc, OnceLock};

use candelabrum_memory::cuda;
use candelabrum_nn::ops::{
    AttentionConfig, BatchNorm, BatchNormConfig, Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig,
    CrossEntropyConfig, CtcConfig, HiddenUnits, LocalResponseNormConfig, Pool2dConfig,
    RecurrentWeights, Reduction, Rotary, RotaryScaling, SequenceSteps, adaptive_avg_pool2d, add,
    attention, attention_pool, avg_pool2d, batch_norm2d, batch_norm2d_add, batch_norm2d_conv2d,
    bce_with_logits_loss, cat, conv_transpose2d, conv1d, conv2d, cosine_embedding_loss,
    cosine_similarity, cross_attention, ctc_loss, dropout, embedding, embedding_with_positions,
    feed_forward, final_state, global_avg_pool2d, group_norm, gru, gru_with, huber_loss, l1_loss,
    last_step, layer_norm, linear, linear_add, linear_cross_entropy, local_response_norm,
    log_softmax, lstm, lstm_with, masked_fill, max_pool2d, mse_loss, mul, narrow, nll_loss,
    permute, relu, rms_norm, rnn, scale, silu_mul, smooth_l1_loss, softmax,
    softmax_cross_entropy_with, split, swiglu, sync_batch_norm2d, transpose, with_composites,
};
use candelabrum_nn::{Activation, StatisticsExchange};
use candelabrum_testkit::{assert_close, gradcheck, integers};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::activations::apply;
use crate::arithmetic::PAIRS;
use crate::behaviour::message;
use crate::channel_norms::{GROUPS, responses};
use crate::convolutions::transposed;
use crate::norms::some_running;
use crate::random;

type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// An operation and its inputs in f64. The gradients of all inputs are compared.
struct Case {
    name: String,
    inputs: Vec<Tensor>,
    f: Function,
    /// Whether a rounding of the inputs changes the result only by about as much.
    smooth: bool,
    /// Whether the gradients are compared with central differences, if there are not too many elements.
    has_differences: bool,
}

/// The most elements of all inputs for which central differences are computed.
const FEW: usize = 600;

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn push(
        &mut self,
        name: impl Into<String>,
        inputs: &[Tensor],
        f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) {
        let (name, inputs) = (name.into(), inputs.to_vec());
        self.0.push(Case { name, inputs, f: Box::new(f), smooth: true, has_differences: true });
    }

    /// A case with jumps, ties, NaN or infinities.
    fn push_rough(
        &mut self,
        name: impl Into<String>,
        inputs: &[Tensor],
        f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) {
        self.push_kinked(name, inputs, f);
        self.last().has_differences = false;
    }

    /// A case with kinks, but none where the inputs are.
    fn push_kinked(
        &mut self,
        name: impl Into<String>,
        inputs: &[Tensor],
        f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) {
        self.push(name, inputs, f);
        self.last().smooth = false;
    }

    fn last(&mut self) -> &mut Case {
        self.0.last_mut().expect("it was pushed")
    }
}

/// The result, and the gradients of the inputs for a random gradient of the result. The inputs are
/// rounded to `rounded` first.
fn pass(case: &Case, rounded: DType, dtype: DType, composite: bool) -> Result<Vec<Tensor>> {
    pass_on(&Device::Cpu, case, rounded, dtype, composite)
}

fn pass_on(
    device: &Device,
    case: &Case,
    rounded: DType,
    dtype: DType,
    composite: bool,
) -> Result<Vec<Tensor>> {
    let var = |input: &Tensor| {
        Var::from_tensor(&input.to_dtype(rounded)?.to_dtype(dtype)?.to_device(device)?)
    };
    let vars = case.inputs.iter().map(var).collect::<Result<Vec<_>>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let f = || (case.f)(&tensors);
    let ys = if composite { with_composites(f) } else { f() }?;
    assert_eq!(ys.dtype(), dtype);
    let dys = random(ys.shape(), 99)?.to_dtype(dtype)?.to_device(device)?;
    let grads = (&ys * dys)?.sum_all()?.backward()?;
    let gradient = |var: &Var| grads.get(var).expect("every input has a gradient").clone();
    Ok([ys.detach()].into_iter().chain(vars.iter().map(gradient)).collect())
}

#[expect(clippy::print_stdout, reason = "names the case when a comparison fails")]
fn check(cases: &Cases) -> Result<()> {
    for case in &cases.0 {
        let elements: usize = case.inputs.iter().map(Tensor::elem_count).sum();
        if case.has_differences && elements <= FEW {
            println!("differences of {}", case.name);
            gradcheck(&case.f, &case.inputs, 1e-5, 1e-7)?;
        }
        // In f32 the rounding errors of long sums differ. In f64 they are far below any mistake.
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
            println!("{} in {dtype:?}", case.name);
            let kernel = pass(case, dtype, dtype, false)?;
            for (composite, kernel) in pass(case, dtype, dtype, true)?.iter().zip(&kernel) {
                assert_close(composite, kernel, tolerance, tolerance);
            }
        }
        // 16 bits agree with the kernel in f64 within a few of their last places.
        for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::BF16, 8e-2)] {
            if !case.smooth {
                continue;
            }
            println!("{} in {dtype:?}", case.name);
            let kernel = pass(case, dtype, DType::F64, false)?;
            for composite in [true, false] {
                for (half, kernel) in pass(case, dtype, dtype, composite)?.iter().zip(&kernel) {
                    assert_close(half, kernel, tolerance, tolerance);
                }
            }
        }
        if let Some(gpu) = gpu() {
            check_on(&gpu, case)?;
        }
    }
    Ok(())
}

/// Compares the kernels and the composites on a GPU with the same type's results on the CPU.
#[expect(clippy::print_stdout, reason = "names the case when a comparison fails")]
fn check_on(gpu: &Device, case: &Case) -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::BF16, 2e-2), (DType::F16, 4e-3)] {
        let is_half = dtype != DType::F32;
        if is_half && !case.smooth {
            continue;
        }
        let on_cpu = pass(case, dtype, dtype, is_half)?;
        for composite in [false, true] {
            println!("{} on a GPU in {dtype:?}, composite {composite}", case.name);
            let on_gpu = pass_on(gpu, case, dtype, dtype, composite)?;
            for (on_gpu, on_cpu) in on_gpu.iter().zip(&on_cpu) {
                assert_close(&on_gpu.to_device(&Device::Cpu)?, on_cpu, tolerance, tolerance);
            }
        }
    }
    Ok(())
}

/// The first GPU. `None` if there is none, or if this build cannot use it.
pub(crate) fn gpu() -> Option<Device> {
    static GPU: OnceLock<Option<Device>> = OnceLock::new();
    let open = || match cuda::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let required = std::env::var_os("REQUIRE_GPUS").is_some();
            assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
            None
        }
    };
    GPU.get_or_init(open).clone()
}

/// None, and every activation.
fn activations() -> impl Iterator<Item = Option<Activation>> {
    [None].into_iter().chain(Activation::ALL.iter().copied().map(Some))
}

#[test]
fn of_activations_and_sums() -> Result<()> {
    let mut cases = Cases::default();
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let odd = [0.0, -0.0, inf, -inf, nan, 40.0, -40.0, 90.0, -90.0, 1e-30, -1e-30, 1e30, -1e30];
    let odd = [Tensor::new(&odd, &Device::Cpu)?];
    for &activation in Activation::ALL {
        let xs = [random((3, 7), 1)?.affine(9.0, 0.0)?]; // also above 6, where relu6 is flat
        cases.push(activation.name(), &xs, move |t| apply(activation, &t[0]));
        cases.push(format!("{activation} of a view"), &xs, move |t| {
            apply(activation, &t[0].t()?.narrow(0, 1, 4)?)?.t()
        });
        let name = format!("{activation} of odd numbers");
        cases.push_rough(name, &odd, move |t| apply(activation, &t[0]));
        let name = format!("{activation} of nothing");
        cases.push(name, &[random((0, 3), 1)?], move |t| apply(activation, &t[0]));
    }
    for activation in activations() {
        for dims in [&[3, 5][..], &[2, 3, 4, 1], &[]] {
            let inputs = [random(dims, 1)?, random(dims, 2)?];
            let name = format!("add {dims:?} {activation:?}");
            cases.push(name, &inputs, move |t| add(&t[0], &t[1], activation));
        }
        let zeros = [
            integers((4, 5), 1, 3)?.to_dtype(DType::F64)?,
            integers((4, 5), 2, 3)?.to_dtype(DType::F64)?.neg()?,
        ];
        let name = format!("add exact zeros {activation:?}");
        cases.push_rough(name, &zeros, move |t| add(&t[0], &t[1], activation));
        cases.push(format!("add twice {activation:?}"), &[random(4, 1)?], move |t| {
            let hidden = relu(&t[0])?;
            add(&add(&t[0], &t[0], activation)?, &add(&hidden, &hidden, activation)?, None)
        });
        let views = [random((2, 3), 1)?, random((3, 4), 2)?];
        cases.push(format!("add views {activation:?}"), &views, move |t| {
            add(&t[0].t()?, &t[1].narrow(1, 1, 2)?, activation)?.t()
        });
    }
    check(&cases)
}

#[test]
fn of_rearrangements() -> Result<()> {
    let mut cases = Cases::default();
    for dims in [[3, 5, 4], [1, 2, 7], [2, 1, 1], [0, 3, 2], [2, 3, 0]] {
        let xs = [random(&dims[..], 1)?];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let name = format!("permute {dims:?} {order:?}");
            cases.push(name.clone(), &xs, move |t| permute(&t[0], order.to_vec()));
            cases.push(name + " of a result and a view", &xs, move |t| {
                permute(&permute(&scale(&t[0].t()?, 2.0)?, order.to_vec())?.t()?, order.to_vec())
            });
        }
        cases.push(format!("transpose {dims:?}"), &xs, |t| transpose(&t[0], 0, 2));
        for dim in 0..3 {
            let half = dims[dim] / 2;
            let name = format!("narrow {dims:?} {dim}");
            cases.push(name.clone(), &xs, move |t| narrow(&t[0], dim, half, dims[dim] - half));
            cases.push(name.clone() + " of a view of a result", &xs, move |t| {
                narrow(&scale(&t[0].t()?, 3.0)?.t()?, dim, half, dims[dim] - half)
            });
            cases.push(name + " of a result", &xs, move |t| {
                let parts = split(&scale(&t[0], 2.0)?, &[half, dims[dim] - half], dim)?;
                Tensor::cat(&[&parts[1], &parts[0]], dim)
            });
            let mut other = dims;
            other[dim] = 2;
            let inputs = [xs[0].clone(), random(&other[..], 2)?];
            cases.push(format!("cat {dims:?} {dim}"), &inputs, move |t| {
                cat(&[&t[0], &t[1], &t[0]], dim)
            });
        }
    }
    check(&cases)
}

#[test]
fn of_arithmetic() -> Result<()> {
    let mut cases = Cases::default();
    let more: [(&[usize], &[usize]); 3] = [(&[0, 3], &[3]), (&[2, 0], &[2, 1]), (&[4, 5], &[4, 5])];
    for (left, right) in PAIRS.into_iter().chain(more) {
        let inputs = [random(left, 1)?, random(right, 2)?];
        cases.push(format!("mul {left:?} {right:?}"), &inputs, |t| mul(&t[0], &t[1]));
        cases.push(format!("mul results {left:?} {right:?}"), &inputs, |t| {
            mul(&scale(&t[0], 2.0)?, &scale(&t[1], -1.0)?)
        });
        for activation in activations() {
            let name = format!("add {left:?} {right:?} {activation:?}");
            cases.push(name, &inputs, move |t| add(&t[0], &t[1], activation));
        }
    }
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let odd = [Tensor::new(&[[0.0, -0.0, inf], [-inf, nan, 1e30]], &Device::Cpu)?];
    for factor in [0.125, -3.0, 0.0] {
        cases.push(format!("scale {factor}"), &[random((3, 5), 1)?], move |t| scale(&t[0], factor));
        cases.push(format!("scale a view by {factor}"), &[random((3, 5), 1)?], move |t| {
            scale(&t[0].t()?, factor)
        });
        cases.push_rough(format!("scale odd {factor}"), &odd, move |t| scale(&t[0], factor));
    }
    cases.push("mul by itself", &[random((3, 4), 1)?], |t| mul(&t[0], &t[0]));
    cases.push("mul views", &[random((2, 3), 1)?, random(4, 2)?], |t| {
        mul(&t[0].t()?, &t[1].narrow(0, 1, 2)?)
    });
    for (dims, mask) in [
        (&[2, 3, 4, 4][..], &[4, 4][..]),
        (&[2, 3, 4], &[2, 1, 1]),
        (&[2, 3, 4], &[3, 1]),
        (&[2, 3], &[2, 3]),
        (&[3, 5], &[]),
        (&[0, 3], &[3]),
    ] {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let name = format!("masked_fill {dims:?} {mask:?} {dtype:?}");
            let mask = integers(mask, 3, 2)?.to_dtype(dtype)?;
            cases.push(name, &[random(dims, 1)?], move |t| {
                let filled = masked_fill(&t[0], &mask, -0.75)?;
                add(&filled, &masked_fill(&scale(&t[0], 2.0)?, &mask, 0.5)?, None)
            });
        }
    }
    let mask = Tensor::new(&[1_u8, 0, 1], &Device::Cpu)?;
    cases.push_rough("masked_fill odd", &odd, move |t| masked_fill(&t[0], &mask, -inf));
    check(&cases)
}

#[test]
fn of_linear_layers_and_embeddings() -> Result<()> {
    let mut cases = Cases::default();
    for activation in activations() {
        for dims in [&[3, 5][..], &[1, 5], &[2, 3, 5], &[5], &[2, 1, 2, 5], &[0, 5], &[2, 0, 5]] {
            let inputs = [random(dims, 1)?, random((7, 5), 2)?, random(7, 3)?];
            let name = format!("linear {dims:?} {activation:?}");
            cases.push(name.clone(), &inputs, move |t| {
                linear(&t[0], &t[1], Some(&t[2]), activation)
            });
            cases.push(name + " no bias", &inputs[..2], move |t| {
                linear(&t[0], &t[1], None, activation)
            });
        }
        let inputs = [random((5, 4), 1)?, random((5, 3), 2)?, random((3, 3), 3)?];
        cases.push(format!("linear of views {activation:?}"), &inputs, move |t| {
            let bias = t[2].narrow(1, 1, 1)?.flatten_all()?;
            linear(&t[0].t()?, &t[1].t()?, Some(&bias), activation)?.t()
        });
    }
    cases.push("linear of one tensor", &[random((3, 3), 1)?], |t| {
        linear(&t[0], &t[0], Some(&t[0].get(0)?), None)
    });
    cases.push("linear without inputs", &[random((3, 0), 1)?, random((2, 0), 2)?], |t| {
        linear(&t[0], &t[1], None, None)
    });

    let weight = [random((3, 9), 1)?];
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let indices = integers((4, 3), 2, 5)?.to_dtype(dtype)?;
        for padding in [None, Some(2)] {
            let indices = indices.clone();
            cases.push(format!("embedding {dtype:?} {padding:?}"), &weight, move |t| {
                let indices = indices.to_device(t[0].device())?;
                embedding(&t[0].t()?.narrow(0, 2, 5)?, &indices.t()?, padding)?.transpose(0, 2)
            });
            // The row of the padding counts as a constant.
            cases.last().has_differences = padding.is_none();
        }
    }
    let nothing = Tensor::zeros((2, 0), DType::U32, &Device::Cpu)?;
    cases.push("embedding of nothing", &weight, move |t| {
        embedding(&t[0], &nothing.to_device(t[0].device())?, Some(1))
    });
    let inputs = [random((2, 5, 3), 1)?];
    cases.push("last step", &inputs, |t| last_step(&t[0]));
    cases.push("last step of a view", &inputs, |t| last_step(&t[0].transpose(0, 1)?)?.t());
    check(&cases)
}

#[test]
fn of_gated_units_and_of_the_last_layer_with_its_loss() -> Result<()> {
    let mut cases = Cases::default();
    for dims in [&[3, 10][..], &[2], &[2, 3, 4], &[0, 4], &[3, 0]] {
        cases.push(format!("swiglu {dims:?}"), &[random(dims, 1)?], |t| swiglu(&t[0]));
        let inputs = [random(dims, 1)?, random(dims, 2)?];
        cases.push(format!("silu_mul {dims:?}"), &inputs, |t| silu_mul(&t[0], &t[1]));
    }
    for dims in [&[3, 5][..], &[2, 3, 5], &[5], &[0, 5]] {
        let mut result = dims.to_vec();
        *result.last_mut().expect("a dimension") = 7;
        let inputs = [random(dims, 1)?, random((7, 5), 2)?, random(&result[..], 3)?, random(7, 4)?];
        let name = format!("linear_add {dims:?}");
        cases.push(name.clone(), &inputs[..3], |t| linear_add(&t[0], &t[1], None, &t[2]));
        cases.push(name.clone(), &inputs, |t| linear_add(&t[0], &t[1], Some(&t[3]), &t[2]));
        let own = [random(dims, 1)?, random((5, 5), 2)?];
        cases.push(name + " with its input", &own, |t| linear_add(&t[0], &t[1], None, &t[0]));
        for (units, width) in [
            (HiddenUnits::Activation(Activation::Gelu), 4),
            (HiddenUnits::Activation(Activation::Relu), 4),
            (HiddenUnits::Activation(Activation::Tanh), 4),
            (HiddenUnits::SwiGlu, 8),
        ] {
            let plain = [random(dims, 1)?, random((width, 5), 2)?, random((5, 4), 3)?];
            cases.push(format!("feed_forward of {units:?} alone {dims:?}"), &plain, move |t| {
                feed_forward(&t[0], (&t[1], None), units, (&t[2], None), None)
            });
            cases.push(format!("feed_forward of {units:?} to itself {dims:?}"), &plain, move |t| {
                feed_forward(&t[0], (&t[1], None), units, (&t[2], None), Some(&t[0]))
            });
            let [xs, _, residual, bias] = inputs.clone();
            let weights = [random((width, 5), 5)?, random(width, 6)?, random((7, 4), 7)?];
            let inputs = [&[xs][..], &weights, &[bias, residual]].concat();
            cases.push(format!("feed_forward {units:?} {dims:?}"), &inputs, move |t| {
                feed_forward(&t[0], (&t[1], Some(&t[2])), units, (&t[3], Some(&t[4])), Some(&t[5]))
            });
        }
    }
    for (n, t) in [(4, 5), (1, 6), (0, 3), (2, 0)] {
        let tokens = integers((n, t), 2, 5)?;
        let tables = [random((5, 3), 1)?, random((6, 3), 2)?];
        cases.push(format!("positions of {n} × {t}"), &tables, move |t| {
            embedding_with_positions(&t[0], &t[1], &tokens.to_device(t[0].device())?)
        });
    }
    let inputs = [random((4, 5, 3), 1)?, random((7, 3), 2)?, random(7, 3)?];
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let labels = integers((4, 5), 4, 7)?.to_dtype(dtype)?;
        for (label_smoothing, ignore_index) in [(0.0, None), (0.2, None), (0.1, Some(3))] {
            let config = CrossEntropyConfig { label_smoothing, ignore_index };
            let (name, other) = (format!("last layer {dtype:?} {config:?}"), labels.clone());
            cases.push(name.clone() + ", no bias", &inputs[..2], move |t| {
                let labels = other.to_device(t[0].device())?;
                // In f32 also for inputs in 16 bits.
                linear_cross_entropy(&t[0], &t[1], None, &labels, config)?.to_dtype(t[0].dtype())
            });
            let labels = labels.clone();
            cases.push(name, &inputs, move |t| {
                let labels = labels.to_device(t[0].device())?;
                linear_cross_entropy(&t[0], &t[1], Some(&t[2]), &labels, config)?
                    .to_dtype(t[0].dtype())
            });
        }
    }
    check(&cases)
}

#[test]
fn of_attention_within_a_sequence() -> Result<()> {
    let mut cases = Cases::default();
    // Sequences, length, heads, heads of keys, size of a head. A block has 128 queries and 256 keys, on a GPU 64
    // of both, so the last ones have whole, partial and several blocks of both.
    let sizes =
        [(2, 5, 3, 3, 3), (1, 7, 6, 2, 4), (3, 1, 2, 1, 6), (1, 0, 1, 1, 2), (0, 3, 2, 2, 2)];
    let large = [(1, 64, 2, 2, 8), (1, 67, 2, 1, 2), (1, 193, 2, 2, 4)];
    // Several of a CPU's blocks of keys. A software GPU would need a minute for them.
    let long = gpu().is_none().then_some((1, 530, 1, 1, 2));
    for (n, t, heads, kv_heads, dim) in sizes.into_iter().chain(large).chain(long) {
        let qkv = [random((n, t, (heads + 2 * kv_heads) * dim), 1)?.affine(2.0, 0.0)?];
        for causal in [false, true] {
            for rotary in [
                None,
                Some(Rotary::default()),
                Some(Rotary { base: 50.0, offset: 3, ..Rotary::default() }),
            ] {
                if rotary.is_some() && dim % 2 == 1 {
                    continue;
                }
                let config =
                    AttentionConfig { kv_heads, causal, rotary, ..AttentionConfig::new(heads) };
                let name = format!("attention of {n} × {t} × {dim}, {config:?}");
                cases.push(name, &qkv, move |t| attention(&t[0], None, config));
            }
        }
    }
    let config = AttentionConfig { scale: Some(-0.3), ..AttentionConfig::new(2) };
    cases.push("attention of a view", &[random((2, 12, 9), 1)?], move |t| {
        attention(&t[0].t()?, None, config)?.t()
    });
    check(&cases)
}

#[test]
fn of_attention_with_scaled_positions() -> Result<()> {
    let mut cases = Cases::default();
    let scalings = [
        RotaryScaling::Linear { factor: 3.0 },
        RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32.0 },
        RotaryScaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, original: 16.0 },
    ];
    for (dim, base) in [(2, 10.0), (8, 100.0), (12, 10_000.0)] {
        let qkv = [random((2, 21, 4 * dim), 1)?];
        for scaling in scalings {
            let rotary = Some(Rotary { base, offset: 1, scaling });
            let config = AttentionConfig { kv_heads: 1, rotary, ..AttentionConfig::new(2) };
            let name = format!("attention, {config:?}");
            cases.push(name, &qkv, move |t| attention(&t[0], None, config));
        }
    }
    check(&cases)
}

#[test]
fn of_attention_with_heads_of_many_sizes() -> Result<()> {
    let mut cases = Cases::default();
    // A block of a GPU has 64 queries, 64 keys, and 64 or 128 columns of a head. Four columns are read at once
    // where they divide the head.
    for (t, heads, kv_heads, dim) in [
        (5, 1, 1, 1),
        (66, 2, 1, 8),
        (65, 2, 2, 62),
        (130, 2, 1, 64),
        (9, 3, 1, 80),
        (67, 1, 1, 128),
        (3, 2, 1, 130),
        (33, 1, 1, 200),
    ] {
        let qkv = [random((2, t, (heads + 2 * kv_heads) * dim), 1)?];
        for rotary in [None, Some(Rotary { base: 100.0, offset: 7, ..Rotary::default() })] {
            if rotary.is_some() && dim % 2 == 1 {
                continue;
            }
            let config =
                AttentionConfig { kv_heads, causal: true, rotary, ..AttentionConfig::new(heads) };
            let name = format!("attention of {t} × {dim}, {config:?}");
            cases.push(name, &qkv, move |t| attention(&t[0], None, config));
        }
    }
    check(&cases)
}

#[test]
fn of_attention_with_a_mask() -> Result<()> {
    let mut cases = Cases::default();
    let config = AttentionConfig { kv_heads: 2, ..AttentionConfig::new(4) };
    let hides = |shape: &[usize], seed| -> Result<Tensor> {
        let hidden = integers(shape, seed, 3)?.eq(0u32)?;
        let mask = random(shape, seed + 1)?;
        hidden.where_cond(&(mask.zeros_like()? + f64::NEG_INFINITY)?, &mask)
    };
    for causal in [false, true] {
        for (number, shape) in [
            &[70, 70][..],
            &[1, 70],
            &[3, 1, 1, 70],
            &[3, 4, 70, 70],
            &[1, 4, 1, 70],
            &[3, 1, 70, 70],
        ]
        .into_iter()
        .enumerate()
        {
            let mask = hides(shape, 20 + 2 * number as u64)?;
            let config = AttentionConfig { causal, ..config };
            cases.push(
                format!("attention masked by {shape:?}, causal {causal}"),
                &[random((3, 70, 24), 1)?],
                {
                    move |t| {
                        let mask = mask.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
                        attention(&t[0], Some(&mask), config)
                    }
                },
            );
        }
    }
    check(&cases)
}

#[test]
fn of_attention_to_another_sequence() -> Result<()> {
    let mut cases = Cases::default();
    for (n, queries, keys, heads, kv_heads, dim) in [
        (2, 5, 3, 2, 2, 3),
        (1, 3, 5, 4, 2, 4),
        (2, 1, 70, 2, 1, 6),
        (1, 70, 600, 1, 1, 2),
        (0, 3, 2, 1, 1, 1),
    ] {
        let inputs = [
            random((n, queries, heads * dim), 1)?,
            random((n, keys, kv_heads * dim), 2)?,
            random((n, keys, kv_heads * dim), 3)?,
        ];
        for causal in [false, true] {
            let rotary = (dim % 2 == 0).then_some(Rotary { offset: 2, ..Rotary::default() });
            if causal && queries > keys {
                continue;
            }
            let config =
                AttentionConfig { kv_heads, causal, rotary, ..AttentionConfig::new(heads) };
            let name = format!("attention of {n} × {queries} to {keys} × {dim}, {config:?}");
            cases.push(name.clone(), &inputs, move |t| {
                cross_attention(&t[0], &t[1], &t[2], None, config)
            });
            let mask = integers((queries, keys), 4, 2)?.to_dtype(DType::F64)?.log()?;
            cases.push(name + ", masked", &inputs, move |t| {
                let mask = mask.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
                cross_attention(&t[0], &t[1], &t[2], Some(&mask), config)
            });
        }
    }
    let views = [random((2, 3, 12), 1)?, random((2, 5, 6), 2)?, random((6, 5, 2), 3)?];
    for causal in [false, true] {
        let config = AttentionConfig { kv_heads: 2, causal, ..AttentionConfig::new(4) };
        cases.push(format!("attention to a view, causal {causal}"), &views, move |t| {
            cross_attention(&t[0], &t[1], &t[2].transpose(0, 2)?, None, config)
        });
    }
    cases.push("attention of a tensor to itself", &[random((2, 9, 8), 1)?], |t| {
        cross_attention(&t[0], &t[0], &t[0], None, AttentionConfig::new(2))
    });
    check(&cases)
}

#[test]
fn of_convolutions() -> Result<()> {
    let plain = Conv2dConfig::default();
    let configs = [
        ([2, 3, 5, 7], [4, 3, 3, 2], plain),
        ([1, 1, 3, 3], [1, 1, 3, 3], plain),
        ([3, 2, 4, 3], [5, 2, 1, 1], plain),
        ([2, 2, 7, 6], [3, 2, 3, 3], Conv2dConfig { stride: (2, 3), ..plain }),
        ([2, 2, 8, 5], [3, 2, 3, 3], Conv2dConfig { stride: (3, 1), padding: (1, 2), ..plain }),
        ([2, 2, 4, 5], [3, 2, 3, 5], Conv2dConfig { padding: (2, 3), ..plain }),
        ([2, 2, 7, 8], [3, 2, 3, 2], Conv2dConfig { dilation: (2, 3), ..plain }),
        (
            [2, 1, 8, 5],
            [2, 1, 2, 3],
            Conv2dConfig { stride: (3, 2), padding: (1, 2), dilation: (2, 1), ..plain },
        ),
        // Some windows, and some elements of the kernel, meet only the padding.
        ([1, 2, 2, 3], [2, 2, 2, 2], Conv2dConfig { padding: (4, 3), stride: (1, 2), ..plain }),
        ([9, 4, 1, 1], [3, 4, 3, 3], Conv2dConfig { padding: (1, 1), ..plain }),
        ([2, 6, 4, 5], [3, 2, 3, 2], Conv2dConfig { groups: 3, padding: (1, 0), ..plain }),
        ([2, 4, 5, 4], [8, 1, 2, 2], Conv2dConfig { groups: 4, stride: (2, 1), ..plain }),
        ([9, 4, 3, 3], [6, 2, 1, 1], Conv2dConfig { groups: 2, ..plain }),
        ([0, 2, 4, 4], [3, 2, 3, 3], plain),
    ];
    let mut cases = Cases::default();
    for (xs, weight, config) in configs {
        let inputs = [random(&xs[..], 1)?, random(&weight[..], 2)?, random(weight[0], 3)?];
        for activation in activations() {
            let name = format!("conv2d {xs:?} {weight:?} {config:?} {activation:?}");
            cases.push(name.clone(), &inputs, move |t| {
                conv2d(&t[0], &t[1], Some(&t[2]), config, activation)
            });
            cases.push(name + " no bias", &inputs[..2], move |t| {
                conv2d(&t[0], &t[1], None, config, activation)
            });
        }
    }
    let tiled = [
        // Several blocks of tiles, tiles over the edge, many small images.
        ([1, 16, 29, 31], [17, 16, 3, 3], plain),
        ([2, 33, 6, 9], [18, 33, 3, 3], Conv2dConfig { padding: (1, 1), ..plain }),
        ([3, 17, 3, 2], [50, 17, 3, 3], Conv2dConfig { padding: (2, 1), ..plain }),
        ([70, 16, 4, 4], [16, 16, 3, 3], Conv2dConfig { padding: (1, 2), ..plain }),
    ];
    for (xs, weight, config) in tiled {
        let inputs = [random(&xs[..], 1)?, random(&weight[..], 2)?, random(weight[0], 3)?];
        // The composite's sums over channels are too long for 16 bits.
        let name = format!("conv2d by tiles {xs:?} {weight:?} {config:?}");
        cases.push_rough(name, &inputs, move |t| {
            conv2d(&t[0], &t[1], Some(&t[2]), config, Some(Activation::Gelu))
        });
    }
    let views = [random((3, 5, 2, 6), 1)?, random((3, 2, 2, 4), 2)?, random((8, 2), 3)?];
    cases.push("conv2d of views", &views, move |t| {
        let xs = t[0].transpose(1, 2)?; // (3, 2, 5, 6)
        let weight = t[1].permute((3, 1, 0, 2))?.narrow(2, 0, 2)?; // (4, 2, 2, 2)
        let bias = t[2].narrow(1, 1, 1)?.flatten_all()?.narrow(0, 4, 4)?;
        conv2d(&xs, &weight, Some(&bias), plain, None)?.transpose(0, 3)?.narrow(1, 1, 2)
    });
    check(&cases)
}

#[test]
fn of_sequences_and_transposed_convolutions() -> Result<()> {
    let mut cases = Cases::default();
    let plain = Conv1dConfig::default();
    for (xs, weight, config) in [
        ([2, 3, 7], [4, 3, 3], plain),
        ([9, 2, 5], [3, 2, 2], plain),
        ([1, 1, 1], [2, 1, 3], Conv1dConfig { padding: 1, ..plain }),
        ([2, 4, 11], [6, 2, 3], Conv1dConfig { stride: 2, padding: 2, dilation: 3, groups: 2 }),
        ([2, 3, 6], [6, 1, 2], Conv1dConfig { groups: 3, ..plain }),
        ([0, 2, 5], [3, 2, 2], plain),
    ] {
        let inputs = [random(&xs[..], 1)?, random(&weight[..], 2)?, random(weight[0], 3)?];
        for activation in activations() {
            let name = format!("conv1d {xs:?} {weight:?} {config:?} {activation:?}");
            cases.push(name.clone(), &inputs, move |t| {
                conv1d(&t[0], &t[1], Some(&t[2]), config, activation)
            });
            cases.push(name + " no bias", &inputs[..2], move |t| {
                conv1d(&t[0], &t[1], None, config, activation)
            });
        }
    }
    cases.push("conv1d of views", &[random((2, 6, 3), 1)?, random((4, 2, 3), 2)?], move |t| {
        conv1d(&t[0].t()?, &t[1].t()?, None, plain, None)?.t()
    });
    let nothing = ([0, 2, 3, 4], [2, 3, 2, 2], ConvTranspose2dConfig::default());
    for (xs, weight, config) in transposed().into_iter().chain([nothing]) {
        let outputs = weight[1] * config.groups;
        let inputs = [random(&xs[..], 1)?, random(&weight[..], 2)?, random(outputs, 3)?];
        for activation in activations() {
            let name = format!("conv_transpose2d {xs:?} {weight:?} {config:?} {activation:?}");
            cases.push(name.clone(), &inputs, move |t| {
                conv_transpose2d(&t[0], &t[1], Some(&t[2]), config, activation)
            });
            cases.push(name + " no bias", &inputs[..2], move |t| {
                conv_transpose2d(&t[0], &t[1], None, config, activation)
            });
        }
    }
    // In 16 bits the composite rounds the sum before the activation, which may change a sign.
    let kinked = cases.0.iter_mut().filter(|case| case.name.contains("Relu"));
    kinked.for_each(|case| case.smooth = false);
    // By tiles, by products that read the image, and by products of interleaved images.
    let padded = ConvTranspose2dConfig { padding: (1, 1), ..ConvTranspose2dConfig::default() };
    for (xs, weight, config) in [
        ([2, 18, 6, 9], [18, 33, 3, 3], padded),
        ([2, 7, 13, 9], [7, 9, 3, 3], ConvTranspose2dConfig { stride: (2, 3), ..padded }),
        ([29, 3, 4, 7], [3, 7, 4, 5], padded),
    ] {
        let inputs = [random(&xs[..], 1)?, random(&weight[..], 2)?, random(weight[1], 3)?];
        let name = format!("conv_transpose2d of many numbers {xs:?} {weight:?} {config:?}");
        cases.push_rough(name, &inputs, move |t| {
            conv_transpose2d(&t[0], &t[1], Some(&t[2]), config, Some(Activation::Gelu))
        });
    }
    let views = [random((5, 2, 3, 4), 1)?, random((3, 2, 2, 4), 2)?];
    cases.push("conv_transpose2d of views", &views, move |t| {
        let xs = t[0].permute((1, 3, 2, 0))?; // (2, 4, 3, 5)
        let weight = t[1].permute((3, 1, 0, 2))?.narrow(2, 0, 2)?; // (4, 2, 2, 2)
        conv_transpose2d(&xs, &weight, None, ConvTranspose2dConfig::default(), None)?.t()
    });
    check(&cases)
}

#[test]
fn of_norms_of_channels() -> Result<()> {
    let mut cases = Cases::default();
    for (dims, groups) in GROUPS.into_iter().chain([(&[0, 4, 3][..], 2), (&[2, 300, 2, 3], 2)]) {
        let inputs = [random(dims, 1)?, random(dims[1], 2)?, random(dims[1], 3)?];
        let name = format!("group_norm {dims:?} {groups}");
        cases.push(name.clone(), &inputs, move |t| {
            group_norm(&t[0], groups, Some(&t[1]), Some(&t[2]), 1e-3)
        });
        cases.push(name.clone() + " no bias", &inputs[..2], move |t| {
            group_norm(&t[0], groups, Some(&t[1]), None, 1e-3)
        });
        cases.push(name.clone() + " no weight", &inputs[..2], move |t| {
            group_norm(&t[0], groups, None, Some(&t[1]), 1e-3)
        });
        let xs = inputs[0].clone();
        cases.push(name.clone() + " of a constant", &inputs[1..], move |t| {
            let xs = xs.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
            group_norm(&xs, groups, Some(&t[0]), Some(&t[1]), 1e-3)
        });
        cases.push(name + " of a result", &inputs[..1], move |t| {
            group_norm(&scale(&t[0], 2.0)?, groups, None, None, 1e-3)
        });
    }
    cases.push("group_norm of views", &[random((2, 4, 3, 2), 1)?, random(6, 2)?], |t| {
        let weight = t[1].narrow(0, 1, 4)?;
        group_norm(&t[0].permute((3, 1, 2, 0))?, 2, Some(&weight), None, 1e-3)?.transpose(1, 2)
    });
    for config in responses() {
        for dims in [&[2, 5, 3, 2][..], &[3, 4], &[0, 3, 2]] {
            let name = format!("local_response_norm {dims:?} {config:?}");
            cases.push(name, &[random(dims, 1)?], move |t| local_response_norm(&t[0], config));
        }
        cases.push(
            format!("local_response_norm of a view {config:?}"),
            &[random((2, 3, 4), 1)?],
            move |t| local_response_norm(&t[0].t()?.narrow(1, 1, 2)?, config),
        );
    }
    check(&cases)
}

#[test]
fn of_poolings() -> Result<()> {
    let mut cases = Cases::default();
    for (dims, out) in [([2, 3, 7, 5], (3, 4)), ([1, 2, 2, 1], (7, 7)), ([0, 3, 7, 5], (2, 2))] {
        let name = format!("adaptive average {dims:?} {out:?}");
        cases
            .push(name.clone(), &[random(&dims[..], 1)?], move |t| adaptive_avg_pool2d(&t[0], out));
        let [n, c, h, w] = dims;
        cases.push(name + " of a view", &[random((n, h, w, c), 1)?], move |t| {
            adaptive_avg_pool2d(&t[0].permute((0, 3, 1, 2))?, out)?.transpose(2, 3)
        });
    }
    let configs = [
        Pool2dConfig::square(1),
        Pool2dConfig::square(2),
        Pool2dConfig::square(3),
        Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) },
        Pool2dConfig { kernel: (3, 2), stride: (1, 3), padding: (0, 1) },
        Pool2dConfig { kernel: (2, 2), stride: (3, 4), padding: (0, 0) },
        Pool2dConfig { kernel: (2, 4), stride: (1, 1), padding: (1, 2) },
        Pool2dConfig { kernel: (9, 9), stride: (1, 1), padding: (4, 4) },
    ];
    let special = |values: [f64; 3], seed| -> Result<Tensor> {
        let indices = integers((2, 3, 7, 5), seed, 3)?.flatten_all()?;
        Tensor::new(&values, &Device::Cpu)?.index_select(&indices, 0)?.reshape((2, 3, 7, 5))
    };
    for config in configs {
        let xs = [random((2, 3, 7, 5), 1)?];
        let max = move |t: &[Tensor]| max_pool2d(&t[0], config);
        cases.push_kinked(format!("max {config:?}"), &xs, max);
        let low = f64::NEG_INFINITY;
        for (number, values) in
            [[0.0, -0.0, 1.0], [low, low, low], [low, -1.0, f64::NAN], [f64::INFINITY, 2.0, low]]
                .into_iter()
                .enumerate()
        {
            let xs = [special(values, 50 + number as u64)?];
            cases.push_rough(format!("max {config:?} of {values:?}"), &xs, max);
        }
        cases.push_kinked(format!("max {config:?} of a view"), &[random((5, 3, 7, 2), 1)?], {
            move |t| max_pool2d(&t[0].permute((3, 1, 2, 0))?, config)?.transpose(2, 3)
        });
        cases.push(format!("max {config:?} of nothing"), &[random((0, 3, 7, 5), 1)?], max);
        for include in [true, false] {
            let name = format!("average {config:?} {include}");
            let average = move |t: &[Tensor]| avg_pool2d(&t[0], config, include);
            cases.push(name.clone(), &xs, average);
            cases.push(name.clone() + " of a view", &[random((5, 3, 7, 2), 1)?], move |t| {
                avg_pool2d(&t[0].permute((3, 1, 2, 0))?, config, include)?.transpose(2, 3)
            });
            cases.push(name + " of nothing", &[random((0, 3, 7, 5), 1)?], average);
        }
    }
    cases.push("global average", &[random((2, 3, 4, 5), 1)?], |t| global_avg_pool2d(&t[0]));
    cases.push("global average of a view", &[random((4, 2, 5, 3), 1)?], |t| {
        global_avg_pool2d(&t[0].permute((3, 1, 2, 0))?.narrow(2, 1, 3)?)?.t()
    });
    cases.push("global average of nothing", &[random((0, 3, 2, 2), 1)?], |t| {
        global_avg_pool2d(&t[0])
    });
    check(&cases)
}

#[test]
fn of_softmax_and_losses() -> Result<()> {
    let mut cases = Cases::default();
    for dims in [&[3, 5][..], &[7], &[2, 3, 33], &[2, 700], &[4, 1], &[3, 0], &[0, 3]] {
        let xs = [random(dims, 1)?.affine(3.0, 0.0)?];
        cases.push(format!("softmax {dims:?}"), &xs, |t| softmax(&t[0]));
        cases.push(format!("log_softmax {dims:?}"), &xs, |t| log_softmax(&t[0]));
    }
    let low = f64::NEG_INFINITY;
    let odd = [[low, 0.0, 1.0], [low, low, low], [900.0, -900.0, 899.0]];
    let odd = [Tensor::new(&odd, &Device::Cpu)?];
    cases.push_rough("softmax of odd rows", &odd, |t| softmax(&t[0]));
    cases.push_rough("log_softmax of odd rows", &odd, |t| log_softmax(&t[0]));
    let views = [random((5, 4), 1)?];
    cases.push("softmax of a view", &views, |t| softmax(&t[0].t()?.narrow(1, 1, 3)?)?.t());
    cases.push("log_softmax of a view", &views, |t| log_softmax(&t[0].t()?.narrow(1, 1, 3)?)?.t());

    let logits = random((5, 7), 1)?.affine(4.0, 0.0)?;
    let unusable = Tensor::full(f64::NAN, (1, 7), &Device::Cpu)?;
    let with_nan = logits.slice_scatter0(&unusable, 1)?;
    let indices = integers(5, 2, 7)?;
    let ignored = Tensor::new(&[3i64, -1, 0, -1, 6], &Device::Cpu)?;
    let all_but_two = random((5, 7), 3)?.abs()?;
    let all_but_two = (&all_but_two * all_but_two.ge(0.3)?.to_dtype(DType::F64)?)?;
    for label_smoothing in [0.0, 0.3, 1.0] {
        for (name, logits, targets, ignore_index, smooth) in [
            ("indices", &logits, &indices, None, true),
            ("nothing ignored", &logits, &indices, Some(-1), true),
            ("ignored rows", &logits, &ignored, Some(-1), true),
            ("ignored rows with NaN", &with_nan, &ignored, Some(-1), false),
            ("a row with NaN", &with_nan, &indices, None, false),
            ("probabilities", &logits, &all_but_two, None, true),
        ] {
            let config = CrossEntropyConfig { label_smoothing, ignore_index };
            let (targets, name) = (targets.clone(), format!("{name}, smoothing {label_smoothing}"));
            cases.push(name.clone(), &[logits.t()?.contiguous()?], move |t| {
                let targets = match targets.dtype() {
                    DType::F64 => targets.to_dtype(t[0].dtype())?,
                    _ => targets.clone(),
                };
                let targets = targets.to_device(t[0].device())?;
                softmax_cross_entropy_with(&t[0].t()?, &targets, config)?.affine(-3.0, 1.0)
            });
            (cases.last().smooth, cases.last().has_differences) = (smooth, smooth);
        }
    }
    let logits = [random((2, 3, 5), 4)?];
    for targets in [integers((2, 3), 5, 5)?, random((2, 3, 5), 6)?.abs()?] {
        cases.push(format!("sequences, {:?}", targets.shape()), &logits, move |t| {
            let targets = match targets.dtype() {
                DType::F64 => targets.to_dtype(t[0].dtype())?,
                _ => targets.clone(),
            };
            let config = CrossEntropyConfig { label_smoothing: 0.2, ..Default::default() };
            softmax_cross_entropy_with(&t[0], &targets.to_device(t[0].device())?, config)
        });
    }
    // The infinite loss of a class with weight 0 does not count.
    let odd = [Tensor::new(&[[low, 0.0, 1.0], [2.0, low, -2.0]], &Device::Cpu)?];
    let targets = Tensor::new(&[[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]], &Device::Cpu)?;
    cases.push_rough("minus infinity without weight", &odd, move |t| {
        let targets = targets.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
        softmax_cross_entropy_with(&t[0], &targets, CrossEntropyConfig::default())
    });
    check(&cases)
}

#[test]
fn of_other_losses_and_of_pooling() -> Result<()> {
    let mut cases = Cases::default();
    type Pairs = fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>;
    let of_pairs: [(&str, Pairs); 4] = [
        ("mse", mse_loss),
        ("l1", l1_loss),
        ("huber", |xs, ys, reduction| huber_loss(xs, ys, 0.4, reduction)),
        ("smooth_l1", |xs, ys, reduction| smooth_l1_loss(xs, ys, 0.4, reduction)),
    ];
    let ties = [integers((6, 7), 1, 3)?, integers((6, 7), 2, 3)?];
    let ties = [
        ties[0].to_dtype(DType::F64)?.affine(0.4, 0.0)?,
        ties[1].to_dtype(DType::F64)?.affine(0.4, 0.0)?,
    ];
    for reduction in [Reduction::Mean, Reduction::Sum] {
        // In f32 also for inputs in 16 bits.
        let narrow = move |t: &[Tensor], loss: Tensor| loss.to_dtype(t[0].dtype());
        for (name, f) in of_pairs {
            for dims in [&[3, 5][..], &[], &[2, 1, 3]] {
                let inputs = [random(dims, 1)?, random(dims, 2)?];
                let name = format!("{name} {dims:?} {reduction:?}");
                cases.push(name, &inputs, move |t| narrow(t, f(&t[0], &t[1], reduction)?));
            }
            let name = format!("{name} of ties {reduction:?}");
            cases.push_rough(name, &ties, move |t| f(&t[0], &t[1], reduction));
        }
        let odd = Tensor::new(&[0.0, -0.0, 1e-9, 40.0, -40.0, 200.0, -200.0], &Device::Cpu)?;
        for (name, xs) in [("any", random((4, 7), 1)?.affine(4.0, 0.0)?), ("odd", odd)] {
            let (targets, weight) = (random(xs.shape(), 2)?.abs()?, random(7, 3)?.abs()?);
            for weighted in [false, true] {
                let (targets, weight) = (targets.clone(), weight.clone());
                let name = format!("bce of {name} numbers, weighted {weighted}, {reduction:?}");
                cases.push(name, std::slice::from_ref(&xs), move |t| {
                    let like = |xs: &Tensor| xs.to_dtype(t[0].dtype())?.to_device(t[0].device());
                    let weight = Some(like(&weight)?).filter(|_| weighted);
                    narrow(
                        t,
                        bce_with_logits_loss(&t[0], &like(&targets)?, weight.as_ref(), reduction)?,
                    )
                });
            }
        }
        for ignored in [None, Some(2)] {
            let targets = integers((3, 4), 4, 5)?;
            let name = format!("nll {ignored:?} {reduction:?}");
            cases.push(name, &[random((3, 4, 5), 1)?], move |t| {
                let targets = targets.to_device(t[0].device())?;
                narrow(t, nll_loss(&t[0], &targets, ignored, reduction)?)
            });
        }
        let inputs = [random((4, 5), 1)?, random((4, 5), 2)?];
        cases.push(format!("cosine embedding {reduction:?}"), &inputs, move |t| {
            let signs = Tensor::new(&[1.0, -1.0, -1.0, 1.0], &Device::Cpu)?;
            let signs = signs.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
            narrow(t, cosine_embedding_loss(&t[0], &t[1], &signs, -0.2, reduction)?)
        });
        for blank in [0, 3] {
            let config = CtcConfig { blank, zero_infinity: true, reduction };
            let of = |values: &[u32]| Tensor::new(values, &Device::Cpu);
            let labels =
                Tensor::new(&[[1u32, 1, 2], [2, 9, 9], [1, 2, 1], [9, 9, 9]], &Device::Cpu)?;
            let (lengths, counts) = (of(&[7, 4, 2, 3])?, of(&[3, 1, 3, 0])?);
            cases.push(format!("ctc {config:?}"), &[random((4, 7, 4), 1)?.affine(2.0, 0.0)?], {
                move |t| {
                    let log_probs = log_softmax(&t[0])?;
                    narrow(t, ctc_loss(&log_probs, &labels, &lengths, &counts, config)?)
                }
            });
        }
    }
    for dims in [&[3, 5][..], &[4], &[2, 3, 1], &[0, 3]] {
        let inputs = [random(dims, 1)?, random(dims, 2)?];
        cases.push(format!("cosine {dims:?}"), &inputs, |t| cosine_similarity(&t[0], &t[1], 1e-8));
    }
    let short = Tensor::new(&[[0.0, 0.0], [1e-3, 2e-3], [1.0, -2.0]], &Device::Cpu)?;
    cases.push_rough("cosine of short vectors", &[short, random((3, 2), 2)?], |t| {
        cosine_similarity(&t[0], &t[1], 0.1)
    });
    for lengths in [None, Some([4u32, 0, 7, 1])] {
        let inputs = [random((7, 4, 3), 1)?, random((4, 7), 2)?.affine(3.0, 0.0)?];
        cases.push(format!("attention pool {lengths:?}"), &inputs, move |t| {
            let lengths = lengths.map(|lengths| Tensor::new(&lengths, &Device::Cpu)).transpose()?;
            attention_pool(&t[0].transpose(0, 1)?, &t[1], lengths.as_ref())
        });
    }
    check(&cases)
}

#[test]
fn of_dropout_with_the_same_mask() -> Result<()> {
    let mut cases = Cases::default();
    let mut values = random(5000, 1)?.to_vec1::<f64>()?;
    for (index, value) in values.iter_mut().enumerate().filter(|(index, _)| index % 7 == 0) {
        *value = [f64::NAN, f64::INFINITY][index % 2];
    }
    let odd = [Tensor::from_vec(values, 5000, &Device::Cpu)?];
    for p in [0.0, 0.4, 0.99] {
        for dims in [(70, 90), (9, 5)] {
            let xs = [random(dims, 1)?];
            cases.push(format!("dropout {p}"), &xs, move |t| dropout(&t[0], p, 7));
            cases.push(format!("dropout {p} of a view"), &xs, move |t| {
                dropout(&t[0].t()?, p, 8)?.t()
            });
        }
        cases.push_rough(format!("dropout {p} of NaN"), &odd, move |t| dropout(&t[0], p, 9));
    }
    cases.push("dropout of nothing", &[random((0, 3), 1)?], |t| dropout(&t[0], 0.5, 1));
    check(&cases)
}

#[test]
fn of_norms() -> Result<()> {
    let mut cases = Cases::default();
    for (dims, of_row) in [
        (&[3, 5][..], 1),
        (&[2, 3, 4], 1),
        (&[2, 3, 4], 2),
        (&[7], 1),
        (&[190, 3], 1),
        (&[2, 300, 2], 2),
        (&[0, 3], 1),
    ] {
        let row = dims[dims.len() - of_row..].to_vec();
        let inputs = [random(dims, 1)?, random(&row[..], 2)?, random(&row[..], 3)?];
        let name = format!("{dims:?} {of_row}");
        let norm = |weight: Option<usize>, bias: Option<usize>| {
            let row = row.clone();
            move |t: &[Tensor]| {
                let of = |number: Option<usize>| number.map(|number| &t[number]);
                layer_norm(&t[0], &row, of(weight), of(bias), 1e-3)
            }
        };
        cases.push(format!("layer_norm {name}"), &inputs, norm(Some(1), Some(2)));
        cases.push(format!("layer_norm {name} no bias"), &inputs[..2], norm(Some(1), None));
        cases.push(format!("layer_norm {name} no weight"), &inputs[..2], norm(None, Some(1)));
        cases.push(format!("layer_norm {name} plain"), &inputs[..1], norm(None, None));
        let of_row = row.clone();
        cases.push(format!("rms_norm {name}"), &inputs[..2], move |t| {
            rms_norm(&t[0], &of_row, Some(&t[1]), 1e-3)
        });
        cases.push(format!("rms_norm {name} plain"), &inputs[..1], move |t| {
            rms_norm(&t[0], &row, None, 1e-3)
        });
    }
    let views = [random((3, 5), 1)?, random(5, 2)?, random((3, 2), 3)?];
    cases.push("layer_norm of views", &views, |t| {
        let (weight, bias) = (t[1].narrow(0, 1, 3)?, t[2].t()?.get(1)?);
        layer_norm(&t[0].t()?, &[3], Some(&weight), Some(&bias), 1e-5)?.t()
    });
    cases.push("rms_norm of a view", &views[..1], |t| {
        rms_norm(&t[0].t()?.narrow(1, 1, 2)?, &[2], None, 1e-5)?.t()
    });
    check(&cases)
}

#[test]
fn of_batch_norms() -> Result<()> {
    let mut cases = Cases::default();
    for dims in [&[3, 2, 3, 5][..], &[1, 3, 2, 3], &[4, 5], &[2, 1, 6, 7], &[2, 3, 1, 1]] {
        let inputs = [random(dims, 1)?, random(dims[1], 2)?, random(dims[1], 3)?];
        let relus =
            [Activation::Relu, Activation::Relu6].map(|activation| (true, Some(activation)));
        for (training, activation) in [(true, None), (false, None)]
            .into_iter()
            .chain(relus)
            .chain(Activation::ALL.iter().map(|&activation| (false, Some(activation))))
        {
            let config = BatchNormConfig { training, activation, eps: 1e-3, ..Default::default() };
            let name = format!("batch_norm2d {dims:?} {training} {activation:?}");
            let channels = dims[1];
            let norm = move |t: &[Tensor], affine: [Option<&Tensor>; 2]| {
                let running = some_running(channels, t[0].dtype(), t[0].device())?;
                let ys = batch_norm2d(&t[0], affine[0], affine[1], Some(&running), config)?;
                // The running statistics as part of the result.
                let moved = Tensor::cat(&[running.mean.value(), running.variance.value()], 0)?;
                Tensor::cat(&[ys.flatten_all()?, moved.to_dtype(ys.dtype())?], 0)
            };
            let first = cases.0.len();
            cases.push(name.clone(), &inputs, move |t| norm(t, [Some(&t[1]), Some(&t[2])]));
            cases.push(name.clone() + " no bias", &inputs[..2], move |t| {
                norm(t, [Some(&t[1]), None])
            });
            cases.push(name.clone() + " plain", &inputs[..1], move |t| norm(t, [None, None]));
            // Running statistics that move have no gradient.
            cases.0[first..].iter_mut().for_each(|case| case.has_differences = !training);
            let with = move |t: &[Tensor], f: &dyn Fn(BatchNorm<'_>) -> Result<Tensor>| {
                let running = some_running(channels, t[0].dtype(), t[0].device())?;
                let (weight, bias) = (Some(&t[1]), Some(&t[2]));
                f(BatchNorm { weight, bias, running: Some(&running), config, exchange: None })
            };
            let residual = [&inputs[..], &[random(dims, 4)?]].concat();
            // On a GPU these are two operations. In 16 bits the first one's rounding goes through the second.
            cases.push_rough(name.clone() + " and a residual", &residual, move |t| {
                with(t, &|norm| batch_norm2d_add(&t[0], norm, &t[3]))
            });
            if dims.len() == 4 {
                let conv =
                    [&inputs[..], &[random((2, channels, 3, 3), 4)?, random(2, 5)?]].concat();
                cases.push_rough(name + " and a convolution", &conv, move |t| {
                    with(t, &|norm| {
                        let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
                        batch_norm2d_conv2d(&t[0], norm, &t[3], Some(&t[4]), padded, None)
                    })
                });
            }
        }
    }
    let views = [random((4, 3, 2, 5), 1)?, random(5, 2)?, random((3, 2), 3)?];
    cases.push("batch_norm2d of views", &views, |t| {
        let xs = t[0].permute((3, 1, 2, 0))?.narrow(3, 1, 2)?; // (5, 3, 2, 2)
        let (weight, bias) = (t[1].narrow(0, 2, 3)?, t[2].t()?.get(1)?);
        let config = BatchNormConfig { activation: Some(Activation::Relu), ..Default::default() };
        batch_norm2d(&xs, Some(&weight), Some(&bias), None, config)?.transpose(1, 2)
    });
    let nothing = [random((0, 3, 4, 4), 1)?, random(3, 2)?, random(3, 3)?];
    cases.push("batch_norm2d of nothing", &nothing, |t| {
        let config = BatchNormConfig { training: false, ..Default::default() };
        let running = some_running(3, t[0].dtype(), t[0].device())?;
        batch_norm2d(&t[0], Some(&t[1]), Some(&t[2]), Some(&running), config)
    });
    check(&cases)
}

/// The kernels on a GPU divide the values of a channel, of which the other cases have few.
#[test]
fn channels_with_many_values_are_as_precise_on_a_gpu() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let mut cases = Cases::default();
    for dims in [[3, 2, 70, 60], [9000, 3, 1, 1], [5, 1, 400, 300]] {
        let xs = random(&dims[..], 1)?.affine(1.0, 100.0)?;
        let inputs = [xs, random(dims[1], 2)?, random(dims[1], 3)?];
        for activation in [None, Some(Activation::Relu)] {
            let config = BatchNormConfig { activation, ..Default::default() };
            cases.push(format!("batch_norm2d {dims:?} {activation:?}"), &inputs, move |t| {
                batch_norm2d(&t[0], Some(&t[1]), Some(&t[2]), None, config)
            });
        }
        let inputs = [random(&dims[..], 1)?, random((2, dims[1], 1, 1), 2)?, random(2, 3)?];
        cases.push(format!("conv2d {dims:?}"), &inputs, |t| {
            conv2d(&t[0], &t[1], Some(&t[2]), Conv2dConfig::default(), None)
        });
    }
    let planes = [random((3, 5, 90, 80), 1)?];
    cases.push("global average", &planes, |t| global_avg_pool2d(&t[0]));
    for case in &cases.0 {
        // cuDNN adds thousands of numbers in f32.
        let tolerance = if case.name.starts_with("conv2d") { 1e-4 } else { 1e-5 };
        let precise = pass(case, DType::F32, DType::F64, false)?;
        let on_gpu = pass_on(&gpu, case, DType::F32, DType::F32, false)?;
        for (on_gpu, precise) in on_gpu.iter().zip(&precise) {
            let on_gpu = on_gpu.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
            assert_close(&on_gpu, precise, tolerance, tolerance);
        }
    }
    Ok(())
}

#[test]
fn of_recurrent_layers() -> Result<()> {
    let mut cases = Cases::default();
    for (gates, kind) in [(1, "rnn"), (3, "gru"), (4, "lstm")] {
        for (batch, steps, width, hidden) in
            [(2, 3, 2, 5), (3, 1, 4, 2), (1, 7, 1, 1), (0, 3, 2, 4)]
        {
            let rows = gates * hidden;
            let inputs = [
                random((steps, batch, width), 1)?,
                random((rows, width), 2)?,
                random((rows, hidden), 3)?,
                random(rows, 4)?,
                random(rows, 5)?,
                random((batch, hidden), 6)?,
                random((batch, hidden), 7)?,
            ];
            // The states are the last inputs: two for an LSTM, one for the others.
            for (bias, state) in [(true, true), (true, false), (false, true), (false, false)] {
                let mut taken = vec![0, 1, 2];
                taken.extend(if bias { &[3, 4][..] } else { &[] });
                taken.extend(if state { &[5, 6][..1 + gates / 4] } else { &[] });
                let inputs: Vec<Tensor> =
                    taken.iter().map(|&n: &usize| inputs[n].clone()).collect();
                let name = format!("{kind} {batch} {steps} {width} {hidden} {bias} {state}");
                cases.push(name, &inputs, move |t| {
                    let of = |number: usize| taken.iter().position(|&n| n == number).map(|n| &t[n]);
                    let weights = RecurrentWeights {
                        weight_ih: &t[1],
                        weight_hh: &t[2],
                        bias_ih: of(3),
                        bias_hh: of(4),
                    };
                    let xs = t[0].transpose(0, 1)?;
                    match gates {
                        1 => {
                            return rnn(
                                &xs,
                                weights,
                                of(5),
                                Activation::Tanh,
                                &SequenceSteps::default(),
                            );
                        }
                        3 => return gru(&xs, weights, of(5)),
                        _ => {}
                    }
                    let (ys, c) = lstm(&xs, weights, of(5).zip(of(6)))?;
                    Tensor::cat(&[ys.flatten_all()?, c.flatten_all()?], 0)
                });
            }
        }
    }
    check(&cases)
}

/// Layers that take some steps of each sequence, in both directions, and the simple layer.
#[test]
fn of_recurrent_layers_with_lengths() -> Result<()> {
    let mut cases = Cases::default();
    let lengths = Tensor::new(&[3u32, 6, 0, 1, 6], &Device::Cpu)?;
    let some = SequenceSteps::of_lengths(&lengths)?;
    let all = SequenceSteps::default();
    for order in [all.clone(), all.reversed(), some.clone(), some.reversed()] {
        for (gates, kind) in [(1, "tanh"), (1, "relu"), (3, "gru"), (4, "lstm")] {
            let rows = gates * 3;
            let inputs = [
                random((6, 5, 2), 1)?,
                random((rows, 2), 2)?,
                random((rows, 3), 3)?,
                random(rows, 4)?,
                random(rows, 5)?,
                random((5, 3), 6)?,
                random((5, 3), 7)?,
            ];
            let order = order.clone();
            let inputs = &inputs[..if gates == 4 { 7 } else { 6 }];
            cases.push(format!("{kind} {order:?}"), inputs, move |t| {
                let weights = RecurrentWeights {
                    weight_ih: &t[1],
                    weight_hh: &t[2],
                    bias_ih: Some(&t[3]),
                    bias_hh: Some(&t[4]),
                };
                let (xs, h0) = (t[0].transpose(0, 1)?, Some(&t[5]));
                let (ys, c) = match kind {
                    "tanh" => (rnn(&xs, weights, h0, Activation::Tanh, &order)?, None),
                    "relu" => (rnn(&xs, weights, h0, Activation::Relu, &order)?, None),
                    "gru" => (gru_with(&xs, weights, h0, &order)?, None),
                    _ => {
                        let (ys, c) = lstm_with(&xs, weights, h0.zip(t.get(6)), &order)?;
                        (ys, Some(c.flatten_all()?))
                    }
                };
                let end = final_state(&ys, h0, &order)?.flatten_all()?;
                let all: Vec<Tensor> = [ys.flatten_all()?, end].into_iter().chain(c).collect();
                Tensor::cat(&all, 0)
            });
        }
    }
    check(&cases)
}

/// Another replica with some statistics.
#[derive(Debug)]
struct Other;

impl StatisticsExchange for Other {
    fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>> {
        let other = (0..values.len()).map(|i| if i == 0 { 4.0 } else { 0.5 });
        Ok(values.iter().copied().chain(other).collect())
    }
}

/// Every operation of this crate on a batch without samples, as a rank may have one at the end of an
/// epoch.
#[test]
fn of_a_batch_of_nothing() -> Result<()> {
    let mut cases = Cases::default();
    let rows = [random((0, 4), 1)?, random((0, 4), 2)?, random((3, 4), 3)?, random(3, 4)?];
    for &activation in Activation::ALL {
        cases.push(activation.name(), &rows[..1], move |t| apply(activation, &t[0]));
    }
    cases.push("add", &rows[..2], |t| add(&t[0], &t[1], Some(Activation::Relu)));
    cases.push("mul", &rows[..2], |t| mul(&t[0], &t[1]));
    cases.push("scale", &rows[..1], |t| scale(&t[0], 3.0));
    cases.push("cat", &rows[..2], |t| cat(&[&t[0], &t[1]], 1));
    cases.push("narrow", &rows[..1], |t| narrow(&t[0], 1, 1, 2));
    cases.push("split", &rows[..1], |t| Ok(split(&t[0], &[1, 3], 1)?.swap_remove(1)));
    cases.push("permute", &rows[..1], |t| permute(&t[0], vec![1, 0]));
    cases.push("transpose", &rows[..1], |t| transpose(&t[0], 0, 1));
    cases.push("dropout", &rows[..1], |t| dropout(&t[0], 0.5, 1));
    cases.push("softmax", &rows[..1], |t| softmax(&t[0]));
    cases.push("log_softmax", &rows[..1], |t| log_softmax(&t[0]));
    cases.push("swiglu", &rows[..1], |t| swiglu(&t[0]));
    let mask = Tensor::new(&[1_u8, 0, 1, 0], &Device::Cpu)?;
    cases.push("masked_fill", &rows[..1], move |t| {
        masked_fill(&t[0], &mask.to_device(t[0].device())?, -1.0)
    });
    let of_linear = [rows[0].clone(), rows[2].clone(), rows[3].clone(), random((0, 3), 5)?];
    cases.push("linear", &of_linear[..3], |t| linear(&t[0], &t[1], Some(&t[2]), None));
    cases.push("linear_add", &of_linear, |t| linear_add(&t[0], &t[1], Some(&t[2]), &t[3]));
    let [xs, weight, bias, _] = of_linear;
    let of_two = [xs, weight, bias, random((5, 3), 6)?, random(5, 7)?];
    cases.push("feed_forward", &of_two, |t| {
        let units = HiddenUnits::Activation(Activation::Gelu);
        feed_forward(&t[0], (&t[1], Some(&t[2])), units, (&t[3], Some(&t[4])), None)
    });
    let norm = [random((0, 4), 1)?, random(4, 2)?, random(4, 3)?];
    cases.push("layer_norm", &norm, |t| layer_norm(&t[0], &[4], Some(&t[1]), Some(&t[2]), 1e-3));
    cases.push("rms_norm", &norm[..2], |t| rms_norm(&t[0], &[4], Some(&t[1]), 1e-3));

    let tokens = Tensor::zeros((0, 5), DType::U32, &Device::Cpu)?;
    let (table, of_positions) = ([random((7, 3), 1)?], tokens.clone());
    cases.push("embedding", &table, move |t| {
        embedding(&t[0], &tokens.to_device(t[0].device())?, None)
    });
    let tables = [random((7, 3), 1)?, random((5, 3), 2)?];
    cases.push("embedding_with_positions", &tables, move |t| {
        embedding_with_positions(&t[0], &t[1], &of_positions.to_device(t[0].device())?)
    });
    for steps in [1, 3] {
        let sequences = [random((0, steps, 12), 1)?];
        cases.push(format!("last_step of {steps}"), &sequences, |t| last_step(&t[0]));
        let backwards = SequenceSteps::default().reversed();
        cases.push(format!("final_state of {steps}"), &sequences, move |t| {
            final_state(&t[0], None, &backwards)
        });
        let scores = [sequences[0].clone(), random((0, steps), 2)?];
        cases.push(format!("attention_pool of {steps}"), &scores, |t| {
            attention_pool(&t[0], &t[1], None)
        });
        cases.push(format!("attention in {steps}"), &sequences, |t| {
            attention(&t[0], None, AttentionConfig { causal: true, ..AttentionConfig::new(2) })
        });
        let others = [random((0, steps, 12), 1)?, random((0, 5, 12), 2)?, random((0, 5, 12), 3)?];
        cases.push(format!("cross_attention of {steps}"), &others, |t| {
            cross_attention(&t[0], &t[1], &t[2], None, AttentionConfig::new(2))
        });
        for (gates, name) in [(1, "rnn"), (3, "gru"), (4, "lstm")] {
            let weights = [random((2 * gates, 12), 2)?, random((2 * gates, 2), 3)?];
            cases.push(format!("{name} of {steps}"), &[&sequences[..], &weights].concat(), {
                move |t| {
                    let (weight_ih, weight_hh) = (&t[1], &t[2]);
                    let weights =
                        RecurrentWeights { weight_ih, weight_hh, bias_ih: None, bias_hh: None };
                    match gates {
                        1 => rnn(&t[0], weights, None, Activation::Tanh, &SequenceSteps::default()),
                        3 => gru(&t[0], weights, None),
                        _ => lstm(&t[0], weights, None).map(|(ys, _)| ys),
                    }
                }
            });
        }
    }

    let images = [random((0, 3, 5, 4), 1)?];
    cases.push("max_pool2d", &images, |t| max_pool2d(&t[0], Pool2dConfig::square(2)));
    cases.push("avg_pool2d", &images, |t| avg_pool2d(&t[0], Pool2dConfig::square(2), true));
    cases.push("global_avg_pool2d", &images, |t| global_avg_pool2d(&t[0]));
    cases.push("adaptive_avg_pool2d", &images, |t| adaptive_avg_pool2d(&t[0], (2, 3)));
    cases.push("local_response_norm", &images, |t| {
        local_response_norm(&t[0], LocalResponseNormConfig::new(3))
    });
    let affine = [&images[..], &[random(3, 2)?, random(3, 3)?]].concat();
    cases.push("group_norm", &affine, |t| group_norm(&t[0], 3, Some(&t[1]), Some(&t[2]), 1e-3));
    let up = [&images[..], &[random((3, 2, 3, 3), 2)?, random(2, 3)?]].concat();
    cases.push("conv_transpose2d", &up, |t| {
        conv_transpose2d(&t[0], &t[1], Some(&t[2]), ConvTranspose2dConfig::default(), None)
    });
    let conv = [&images[..], &[random((2, 3, 3, 3), 2)?, random(2, 3)?]].concat();
    cases.push("conv2d", &conv, |t| {
        conv2d(&t[0], &t[1], Some(&t[2]), Conv2dConfig::default(), Some(Activation::Relu))
    });
    let norm = [&images[..], &[random(3, 2)?, random(3, 3)?]].concat();
    // Not in 16 bits: candle's conversion of nothing is an error on a GPU, and the other replica needs an
    // answer, so the operation cannot leave it out.
    cases.push_rough("sync_batch_norm2d", &norm, |t| {
        let config = BatchNormConfig::default();
        let other: Arc<dyn StatisticsExchange> = Arc::new(Other);
        sync_batch_norm2d(&t[0], Some(&t[1]), Some(&t[2]), None, config, &other)
    });
    let evaluation = |t: &[Tensor], f: &dyn Fn(BatchNorm<'_>) -> Result<Tensor>| {
        let config = BatchNormConfig { training: false, ..Default::default() };
        let running = some_running(3, t[0].dtype(), t[0].device())?;
        let (weight, bias) = (Some(&t[1]), Some(&t[2]));
        f(BatchNorm { weight, bias, running: Some(&running), config, exchange: None })
    };
    cases.push("batch_norm2d", &norm, move |t| {
        evaluation(t, &|norm| {
            batch_norm2d(&t[0], norm.weight, norm.bias, norm.running, norm.config)
        })
    });
    let residual = [&norm[..], &[random((0, 3, 5, 4), 4)?]].concat();
    cases.push("batch_norm2d_add", &residual, move |t| {
        evaluation(t, &|norm| batch_norm2d_add(&t[0], norm, &t[3]))
    });
    let conv = [&norm[..], &[random((2, 3, 3, 3), 4)?]].concat();
    cases.push("batch_norm2d_conv2d", &conv, move |t| {
        let plain = Conv2dConfig::default();
        evaluation(t, &|norm| batch_norm2d_conv2d(&t[0], norm, &t[3], None, plain, None))
    });
    check(&cases)?;

    // A mean of nothing is refused by both.
    let (xs, weight) = (random((0, 4), 1)?, random((3, 4), 2)?);
    let labels = Tensor::zeros(0, DType::U32, &Device::Cpu)?;
    let config = CrossEntropyConfig::default();
    let losses = || {
        let of_logits = message(softmax_cross_entropy_with(&xs, &labels, config));
        let of_inputs = message(linear_cross_entropy(&xs, &weight, None, &labels, config));
        [of_logits, of_inputs]
    };
    assert!(losses().iter().all(|message| message.contains("nothing to take the mean of")));
    assert_eq!(losses(), with_composites(losses));
    Ok(())
}

#[test]
fn the_switch_is_a_threads_own_and_goes_back_also_after_a_panic() -> Result<()> {
    // Only candle's operations support this type.
    let quarter = Tensor::zeros(3, DType::F8E4M3, &Device::Cpu)?;
    let is_on = || relu(&quarter).is_ok();
    with_composites(|| {
        assert!(is_on());
        assert!(!std::thread::scope(|scope| scope.spawn(is_on).join()).expect("no panic"));
        assert!(with_composites(is_on));
        assert!(is_on());
        let panics = || with_composites(|| panic!("as a layer might"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(is_on());
    });
    assert!(!is_on());
    let integers = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    let error = message(with_composites(|| relu(&integers)));
    assert_eq!(error, "unsupported dtype U32 for op relu");
    Ok(())
}
