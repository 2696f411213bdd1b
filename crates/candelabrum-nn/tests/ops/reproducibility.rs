//! Two runs give the same bits, and so do one, two and five threads.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Conv2dConfig, Pool2dConfig, conv2d, linear, max_pool2d, softmax_cross_entropy,
};
use candelabrum_testkit::{integers, uniform};
use candle_core::{DType, Result, Tensor, Var};

/// Loss and gradients of a small CNN in f32, with `threads` threads.
fn run(batch: usize, threads: usize) -> Result<Vec<Vec<f32>>> {
    let random = |shape: &[usize], seed| uniform(shape, seed, -0.5, 0.5, DType::F32);
    let step = || -> Result<Vec<Vec<f32>>> {
        let relu = Some(Activation::Relu);
        let shapes: [&[usize]; 7] =
            [&[20, 1, 5, 5], &[20], &[50, 20, 5, 5], &[50], &[10, 280], &[10], &[70, 50, 3, 3]];
        let vars: Vec<Var> = (1..)
            .zip(shapes)
            .map(|(seed, shape)| Var::from_tensor(&random(shape, seed)?))
            .collect::<Result<_>>()?;
        let [w1, b1, w2, b2, w3, b3, w4] = &vars[..] else { unreachable!("seven shapes") };
        let (config, pool) = (Conv2dConfig::default(), Pool2dConfig::square(2));
        let xs = random(&[batch, 1, 28, 28], 100)?;
        let ys = max_pool2d(&conv2d(&xs, w1, Some(b1), config, relu)?, pool)?;
        let ys = max_pool2d(&conv2d(&ys, w2, Some(b2), config, relu)?, pool)?;
        // A small image at the end: (50, 4, 4) to (50, 2, 2).
        let strided = Conv2dConfig { stride: (2, 2), padding: (1, 1), ..config };
        let ys = conv2d(&ys, w4, None, strided, relu)?;
        let logits = linear(&ys.flatten_from(1)?, w3, Some(b3), None)?;
        let loss = softmax_cross_entropy(&logits, &integers(batch, 101, 10)?)?;
        let grads = loss.backward()?;
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let mut results = vec![flat(&loss)?, flat(&logits)?];
        for var in &vars {
            results.push(flat(grads.get(var).expect("every variable has a gradient"))?);
        }
        Ok(results)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
    pool.install(step)
}

fn bits(results: &[Vec<f32>]) -> Vec<Vec<u32>> {
    results.iter().map(|values| values.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads_or_the_run() -> Result<()> {
    for batch in [1, 3, 37] {
        let expected = bits(&run(batch, 1)?);
        for threads in [1, 2, 2, 5] {
            let actual = bits(&run(batch, threads)?);
            assert!(actual == expected, "batch {batch}: {threads} threads differ from one");
        }
    }
    Ok(())
}
