//! Operations by elements, rows or steps give the same bits with any number of threads. The sizes
//! are so large that the operations use several threads.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    AttentionConfig, BatchNorm, BatchNormConfig, Conv2dConfig, ConvTranspose2dConfig,
    CrossEntropyConfig, CtcConfig, HiddenUnits, LocalResponseNormConfig, Pool2dConfig,
    RecurrentWeights, Reduction, Rotary, SequenceSteps, adaptive_avg_pool2d, add, attention,
    attention_pool, avg_pool2d, batch_norm2d_add, batch_norm2d_conv2d, bce_with_logits_loss, cat,
    conv_transpose2d, conv2d, cosine_similarity, cross_attention, ctc_loss, dropout, embedding,
    embedding_with_positions, feed_forward, final_state, gelu, global_avg_pool2d, group_norm, gru,
    huber_loss, last_step, linear, linear_add, local_response_norm, log_softmax, lstm, lstm_with,
    masked_fill, mul, permute, relu6, scale, silu, softmax, softmax_cross_entropy_with, split,
    swiglu,
};
use candelabrum_testkit::{integers, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};

/// Compares the bits of the result and gradients of `f` between 1, 2 and 5 threads.
fn check(inputs: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor> + Sync) -> Result<()> {
    let run = || -> Result<Vec<Vec<u32>>> {
        let mut vars = Vec::new();
        for (seed, shape) in (1..).zip(inputs) {
            vars.push(Var::from_tensor(&uniform(*shape, seed, -0.5, 0.5, DType::F32)?)?);
        }
        let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        let ys = f(&tensors)?;
        let grads = ys.sqr()?.sum_all()?.backward()?;
        let gradients = vars.iter().map(|var| grads.get(var).expect("every input has a gradient"));
        let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
            Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        [&ys].into_iter().chain(gradients).map(bits).collect()
    };
    let with_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a thread pool").install(run)
    };
    let expected = with_threads(1)?;
    for threads in [2, 5] {
        assert!(with_threads(threads)? == expected, "{threads} threads differ from one");
    }
    Ok(())
}

#[test]
fn activations_and_dropout() -> Result<()> {
    check(&[&[50_001]], |t| gelu(&t[0]))?;
    check(&[&[50_001]], |t| silu(&t[0]))?;
    check(&[&[301, 500]], |t| swiglu(&t[0]))?;
    check(&[&[50_001]], |t| relu6(&t[0].affine(9.0, 0.0)?))?;
    check(&[&[50_001]], |t| dropout(&t[0], 0.3, 5))?;
    let gelu = Some(Activation::Gelu);
    let shapes: [&[usize]; 4] = [&[130, 20], &[300, 20], &[300], &[130, 300]];
    check(&shapes, |t| linear_add(&t[0], &t[1], Some(&t[2]), &t[3]))?;
    for (units, width) in
        [(HiddenUnits::Activation(Activation::Gelu), 70), (HiddenUnits::SwiGlu, 140)]
    {
        let shapes: [&[usize]; 5] = [&[2100, 20], &[width, 20], &[width], &[30, 70], &[30]];
        check(&shapes, |t| {
            feed_forward(&t[0], (&t[1], Some(&t[2])), units, (&t[3], Some(&t[4])), None)
        })?;
    }
    for [xs, weight] in [[[130, 20], [300, 20]], [[100, 600], [300, 600]]] {
        check(&[&xs, &weight, &weight[..1]], |t| linear(&t[0], &t[1], Some(&t[2]), gelu))?;
    }
    Ok(())
}

#[test]
fn poolings_and_embedding() -> Result<()> {
    let config = Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) };
    check(&[&[3, 5, 51, 50]], |t| avg_pool2d(&t[0], config, false))?;
    check(&[&[3, 5, 51, 50]], |t| global_avg_pool2d(&t[0]))?;
    check(&[&[3, 5, 51, 50]], |t| adaptive_avg_pool2d(&t[0], (7, 6)))?;
    let indices = integers(500, 9, 1001)?;
    check(&[&[1001, 40]], |t| embedding(&t[0], &indices, Some(3)))?;
    let tokens = integers((20, 50), 9, 1001)?;
    check(&[&[1001, 40], &[50, 40]], |t| embedding_with_positions(&t[0], &t[1], &tokens))
}

#[test]
fn norms_of_channels_and_transposed_convolutions() -> Result<()> {
    check(&[&[7, 6, 31, 20], &[6], &[6]], |t| {
        group_norm(&t[0], 3, Some(&t[1]), Some(&t[2]), 1e-5)
    })?;
    check(&[&[7, 6, 31, 20]], |t| local_response_norm(&t[0], LocalResponseNormConfig::new(5)))?;
    let config = ConvTranspose2dConfig { stride: (2, 2), padding: (1, 1), ..Default::default() };
    for (xs, weight) in [
        ([7, 6, 21, 20], [6, 5, 4, 4]),
        ([40, 6, 5, 4], [6, 5, 4, 4]),
        ([7, 18, 21, 20], [18, 19, 3, 3]),
    ] {
        check(&[&xs, &weight, &weight[1..2]], |t| {
            conv_transpose2d(&t[0], &t[1], Some(&t[2]), config, Some(Activation::Relu))
        })?;
    }
    Ok(())
}

#[test]
fn losses() -> Result<()> {
    let labels = integers(37, 2, 1999)?;
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: None };
    check(&[&[37, 1999]], |t| {
        let logits = log_softmax(&softmax(&t[0].affine(10.0, 0.0)?)?.affine(9.0, 0.0)?)?;
        softmax_cross_entropy_with(&logits, &labels, config)
    })?;
    let pair: [&[usize]; 2] = [&[101, 203]; 2];
    check(&pair, |t| huber_loss(&t[0], &t[1], 1.0, Reduction::Mean))?;
    check(&pair, |t| cosine_similarity(&t[0], &t[1], 1e-8))?;
    let targets = uniform((101, 203), 2, 0.0, 1.0, DType::F32)?;
    check(&pair[..1], |t| bce_with_logits_loss(&t[0], &targets, None, Reduction::Mean))?;
    check(&[&[101, 203, 9], &[101, 203]], |t| attention_pool(&t[0], &t[1], None))?;
    let labels = integers((7, 20), 3, 20)?.affine(1.0, 1.0)?;
    let (lengths, counts) = (Tensor::full(60u32, 7, &Device::Cpu)?, integers(7, 4, 20)?);
    let config = CtcConfig { zero_infinity: true, ..CtcConfig::default() };
    check(&[&[7, 60, 48]], |t| {
        ctc_loss(&log_softmax(&t[0].affine(10.0, 0.0)?)?, &labels, &lengths, &counts, config)
    })
}

#[test]
fn attentions() -> Result<()> {
    let rotary = Some(Rotary::default());
    let config = AttentionConfig { kv_heads: 2, causal: true, rotary, ..AttentionConfig::new(4) };
    check(&[&[2, 130, 96]], |t| attention(&t[0], None, config))?;
    let config = AttentionConfig::new(3);
    let shapes: [&[usize]; 3] = [&[3, 70, 15], &[3, 90, 15], &[3, 90, 15]];
    check(&shapes, |t| cross_attention(&t[0], &t[1], &t[2], None, config))
}

#[test]
fn convolutions() -> Result<()> {
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    for (xs, weight, config) in [
        ([7, 20, 13, 12], [40, 20, 3, 3], padded),
        ([1, 20, 33, 40], [40, 20, 3, 3], padded),
        ([9, 20, 13, 12], [30, 20, 3, 3], Conv2dConfig { stride: (2, 2), ..padded }),
        ([9, 20, 13, 12], [20, 1, 3, 3], Conv2dConfig { groups: 20, ..padded }),
        ([9, 20, 13, 12], [40, 20, 1, 1], Conv2dConfig::default()),
        ([9, 3, 30, 30], [24, 3, 5, 5], Conv2dConfig::default()),
        ([40, 64, 4, 4], [70, 64, 3, 3], padded),
        ([9, 130, 7, 7], [150, 130, 1, 1], Conv2dConfig::default()),
        ([29, 20, 12, 12], [50, 20, 5, 5], Conv2dConfig::default()),
    ] {
        let gelu = Some(Activation::Gelu);
        check(&[&xs, &weight, &weight[..1]], |t| conv2d(&t[0], &t[1], Some(&t[2]), config, gelu))?;
        let norm = BatchNormConfig { activation: Some(Activation::Relu), ..Default::default() };
        check(&[&xs, &weight, &xs[1..2]], |t| {
            let norm = BatchNorm { weight: Some(&t[2]), config: norm, ..Default::default() };
            batch_norm2d_conv2d(&t[0], norm, &t[1], None, config, None)
        })?;
        check(&[&xs, &xs, &xs[1..2]], |t| {
            let norm = BatchNorm { weight: Some(&t[2]), config: norm, ..Default::default() };
            batch_norm2d_add(&t[0], norm, &t[1])
        })?;
    }
    Ok(())
}

#[test]
fn rearrangements_and_arithmetic() -> Result<()> {
    let shape: &[usize] = &[9, 31, 301];
    for order in [[0, 2, 1], [2, 0, 1], [1, 0, 2]] {
        check(&[shape], |t| permute(&t[0], order.to_vec()))?;
    }
    check(&[shape], |t| {
        let parts = split(&scale(&t[0], 0.3)?, &[100, 1, 150, 50], 2)?;
        cat(&[&parts[2], &parts[0], &parts[2]], 2)
    })?;
    check(&[shape, &[9, 3, 301]], |t| cat(t, 1))?;
    check(&[shape], |t| relu_of_a_view(&t[0]))?;
    check(&[shape; 2], |t| add(&t[0], &t[1], Some(Activation::Relu)))?;
    for other in [shape, &[301], &[31, 1], &[9, 1, 301], &[9, 1, 1], &[1]] {
        check(&[shape, other], |t| mul(&t[0], &t[1]))?;
        check(&[shape, other], |t| add(&t[0], &t[1], Some(Activation::Gelu)))?;
        let mask = integers(other, 7, 2)?;
        check(&[shape], |t| masked_fill(&t[0], &mask, 0.25))?;
    }
    check(&[&[9001, 7], &[7]], |t| mul(&t[0], &t[1]))
}

fn relu_of_a_view(xs: &Tensor) -> Result<Tensor> {
    let views = scale(xs, 2.0)?;
    let (left, right) = (views.narrow(2, 0, 100)?, views.narrow(2, 100, 201)?);
    cat(&[&silu(&left.transpose(1, 2)?)?, &silu(&right.transpose(1, 2)?)?], 1)
}

#[test]
fn recurrent_layers() -> Result<()> {
    let weights = |t: &[Tensor]| -> Result<Tensor> {
        let (bias_ih, bias_hh) = (Some(&t[3]), Some(&t[4]));
        let weights = RecurrentWeights { weight_ih: &t[1], weight_hh: &t[2], bias_ih, bias_hh };
        match t[3].dims()[0] / t[2].dims()[1] {
            3 => last_step(&gru(&t[0], weights, None)?),
            _ => Ok(lstm(&t[0], weights, None)?.0),
        }
    };
    for gates in [3, 4] {
        let rows = gates * 65;
        check(&[&[33, 7, 30], &[rows, 30], &[rows, 65], &[rows], &[rows]], weights)?;
    }
    let lengths = integers(33, 8, 8)?;
    for order in
        [SequenceSteps::of_lengths(&lengths)?, SequenceSteps::of_lengths(&lengths)?.reversed()]
    {
        check(&[&[33, 7, 30], &[260, 30], &[260, 65], &[260], &[260]], |t| {
            let (bias_ih, bias_hh) = (Some(&t[3]), Some(&t[4]));
            let weights = RecurrentWeights { weight_ih: &t[1], weight_hh: &t[2], bias_ih, bias_hh };
            let (ys, c) = lstm_with(&t[0], weights, None, &order)?;
            final_state(&ys, None, &order)? + c
        })?;
    }
    Ok(())
}
