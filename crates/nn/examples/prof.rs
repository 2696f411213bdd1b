//! scratch
#![allow(clippy::all, missing_docs, clippy::unwrap_used, clippy::print_stdout)]
use candelabrum_nn::ops::{self, Conv2dConfig, Pool2dConfig, profile};
use candelabrum_nn::{Activation, FlatGradients, Init, Params};
use candelabrum_testkit::mnist_cnn_recipe as recipe;
use candle_core::{Device, Result, Tensor};
use std::time::Instant;
#[global_allocator]
static A: mimalloc::MiMalloc = mimalloc::MiMalloc;
fn main() -> Result<()> {
    let batch: usize = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(64);
    let params = Params::new(0);
    let p: Vec<_> = recipe::parameters()?
        .into_iter()
        .map(|(n, t)| {
            let p = params.root().param(n, t.dims(), Init::ZEROS).unwrap();
            p.set(&t).unwrap();
            p
        })
        .collect();
    let (x, y) = recipe::batch(0)?;
    let reps = batch.div_ceil(64);
    let x = Tensor::cat(&vec![x; reps], 0)?.narrow(0, 0, batch)?.contiguous()?;
    let y = Tensor::cat(&vec![y; reps], 0)?.narrow(0, 0, batch)?.contiguous()?;
    let mut g = FlatGradients::<Vec<f32>>::default();
    for q in p.iter().rev() {
        let n = q.var().elem_count();
        g.push(vec![0.0; n], [(q, 0..n)]);
    }
    let r = Some(Activation::Relu);
    let c = Conv2dConfig::default();
    let k = Pool2dConfig::square(2);
    let mut step = || -> Result<Tensor> {
        let h = ops::max_pool2d(&ops::conv2d(&x, p[0].tensor(), Some(p[1].tensor()), c, r)?, k)?;
        let h = ops::max_pool2d(&ops::conv2d(&h, p[2].tensor(), Some(p[3].tensor()), c, r)?, k)?;
        let h = ops::linear(&h.flatten_from(1)?, p[4].tensor(), Some(p[5].tensor()), r)?;
        let l = ops::softmax_cross_entropy(
            &ops::linear(&h, p[6].tensor(), Some(p[7].tensor()), None)?,
            &y,
        )?;
        g.clear();
        g.backward(&l)?;
        for (q, b) in p.iter().rev().zip(g.buffers_mut()) {
            let b = b.as_ref().unwrap();
            q.update_in_place(|v| v.iter_mut().zip(b).for_each(|(v, g)| *v -= 0.005 * g)).unwrap();
        }
        Ok(l)
    };
    for _ in 0..20 {
        step()?;
    }
    let mut times = vec![];
    for _ in 0..5 {
        let t = Instant::now();
        for _ in 0..100 {
            step()?;
        }
        times.push(t.elapsed().as_secs_f64() / 100.0);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "step {:.3} ms  {:.0} img/s (best {:.0})",
        times[2] * 1e3,
        batch as f64 / times[2],
        batch as f64 / times[0]
    );
    profile::start();
    for _ in 0..100 {
        step()?;
    }
    let mut sum = 0.0;
    for r in profile::stop() {
        let (f, b) = (r.forward.as_secs_f64() * 10.0, r.backward.as_secs_f64() * 10.0);
        sum += f + b;
        println!("{:24}{:20} f {:.3} b {:.3}", r.name, format!("{:?}", r.output), f, b);
    }
    println!("sum {sum:.3}");
    let _ = Device::Cpu;
    Ok(())
}
