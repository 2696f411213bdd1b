//! Operations by elements, rows or steps give the same bits with any number of threads. The sizes
//! are so large that the operations use several threads.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Pool2dConfig, RecurrentWeights, avg_pool2d, dropout, embedding, gelu, global_avg_pool2d, gru,
    last_step, linear, lstm, relu6, silu,
};
use candelabrum_testkit::{integers, uniform};
use candle_core::{DType, Result, Tensor, Var};

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
    check(&[&[50_001]], |t| relu6(&t[0].affine(9.0, 0.0)?))?;
    check(&[&[50_001]], |t| dropout(&t[0], 0.3, 5))?;
    let gelu = Some(Activation::Gelu);
    check(&[&[130, 20], &[300, 20], &[300]], |t| linear(&t[0], &t[1], Some(&t[2]), gelu))
}

#[test]
fn poolings_and_embedding() -> Result<()> {
    let config = Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) };
    check(&[&[3, 5, 51, 50]], |t| avg_pool2d(&t[0], config, false))?;
    check(&[&[3, 5, 51, 50]], |t| global_avg_pool2d(&t[0]))?;
    let indices = integers(500, 9, 1001)?;
    check(&[&[1001, 40]], |t| embedding(&t[0], &indices, Some(3)))
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
    Ok(())
}
