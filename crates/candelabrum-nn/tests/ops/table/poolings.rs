//! Largest and mean values of windows.

use candelabrum_nn::ops::{self, Pool2dConfig};
use candelabrum_testkit::integers;
use candle_core::{Device, Result, Tensor};

use super::case::{Arguments, Cases};

const SHAPES: [[usize; 4]; 3] = [[2, 3, 7, 5], [0, 3, 7, 5], [3, 5, 51, 50]];

fn configs() -> [Pool2dConfig; 9] {
    [
        Pool2dConfig::square(1),
        Pool2dConfig::square(2),
        Pool2dConfig::square(3),
        Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) },
        Pool2dConfig { kernel: (3, 2), stride: (1, 3), padding: (0, 1) },
        Pool2dConfig { kernel: (2, 2), stride: (3, 4), padding: (0, 0) },
        Pool2dConfig { kernel: (2, 4), stride: (1, 1), padding: (1, 2) },
        Pool2dConfig { kernel: (1, 4), stride: (1, 1), padding: (0, 2) },
        Pool2dConfig { kernel: (9, 9), stride: (1, 1), padding: (4, 4) },
    ]
}

#[test]
fn max_pool2d() -> Result<()> {
    let with = |config| move |t: &Arguments| ops::max_pool2d(&t[0], config);
    let mut cases = Cases::new("max_pool2d", &["xs"], &[]);
    cases.golden("max_pool2d", |case| {
        let [ky, kx, sy, sx, py, px] = case.config()?;
        Ok(with(Pool2dConfig { kernel: (ky, kx), stride: (sy, sx), padding: (py, px) }))
    })?;
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let special = [[0.0, -0.0, 1.0], [-inf; 3], [-inf, -1.0, nan], [inf, 2.0, -inf]];
    for config in configs() {
        for dims in SHAPES {
            cases.add(config, &[&dims], with(config)).not_in_16_bits();
        }
        for (seed, values) in (50..).zip(special) {
            let indices = integers((2, 3, 7, 5), seed, 3)?.flatten_all()?;
            let xs = Tensor::new(&values, &Device::Cpu)?.index_select(&indices, 0)?;
            let xs = [xs.reshape((2, 3, 7, 5))?];
            cases.add_with((config, values), &xs, with(config)).rough();
        }
    }
    cases.check()
}

#[test]
fn avg_pool2d() -> Result<()> {
    let with = |config, include| move |t: &Arguments| ops::avg_pool2d(&t[0], config, include);
    let mut cases = Cases::new("avg_pool2d", &["xs"], &[]);
    cases.golden("avg_pool2d", |case| {
        let [ky, kx, sy, sx, py, px, include] = case.config()?;
        let config = Pool2dConfig { kernel: (ky, kx), stride: (sy, sx), padding: (py, px) };
        Ok(with(config, include == 1))
    })?;
    for config in configs() {
        for include in [true, false] {
            for dims in SHAPES {
                cases.add((config, include), &[&dims], with(config, include));
            }
        }
    }
    cases.check()
}

#[test]
fn adaptive_and_global_avg_pool2d() -> Result<()> {
    let to = |size| move |t: &Arguments| ops::adaptive_avg_pool2d(&t[0], size);
    let global = |t: &Arguments| ops::global_avg_pool2d(&t[0]);
    let mut adaptive = Cases::new("adaptive_avg_pool2d", &["xs"], &[]);
    adaptive.golden("adaptive_avg_pool2d", |case| {
        let [height, width] = case.config()?;
        Ok(to((height, width)))
    })?;
    let mut whole = Cases::new("global_avg_pool2d", &["xs"], &[]);
    whole.golden("global_avg_pool2d", |_| Ok(global))?;
    for dims in SHAPES.into_iter().chain([[3, 2, 5, 4], [1, 2, 2, 1]]) {
        for size in [(3, 4), (7, 1), (7, 7)] {
            adaptive.add(size, &[&dims], to(size));
        }
        whole.add("", &[&dims], global);
    }
    adaptive.check()?;
    whole.check()
}
