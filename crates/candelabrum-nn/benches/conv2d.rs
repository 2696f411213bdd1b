//! Convolutions at the sizes of ResNet: forward, and the gradients of input and weight.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn --bench conv2d
//! ```
//!
//! With `-- bf16` behind it, products are computed in bf16.

#![expect(clippy::print_stdout, reason = "its result is what it prints")]
#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_nn::ops::{Conv2dConfig, ProductPrecision, conv2d, profile, set_product_precision};
use candelabrum_testkit::uniform;
use candle_core::{DType, Var};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    if std::env::args().any(|argument| argument == "bf16") {
        set_product_precision(ProductPrecision::Bf16);
    }
    for (batch, cin, cout, side, kernel, stride) in [
        (8, 64, 64, 56, 3, 1),
        (8, 128, 128, 28, 3, 1),
        (8, 256, 256, 14, 3, 1),
        (8, 512, 512, 7, 3, 1),
        (64, 64, 64, 32, 3, 1),
        (64, 128, 128, 16, 3, 1),
        (64, 256, 256, 8, 3, 1),
        (64, 512, 512, 4, 3, 1),
        (8, 64, 128, 56, 3, 2),
        (8, 256, 512, 14, 3, 2),
        (8, 3, 64, 224, 7, 2),
        (64, 3, 64, 32, 3, 1),
        (8, 64, 256, 56, 1, 1),
        (8, 1024, 256, 14, 1, 1),
        (64, 20, 50, 12, 5, 1),
    ] {
        // The MNIST CNN has no padding.
        let padding = if kernel == 5 { 0 } else { kernel / 2 };
        let xs =
            Var::from_tensor(&uniform((batch, cin, side, side), 1, -1.0, 1.0, DType::F32).unwrap())
                .unwrap();
        let w = Var::from_tensor(
            &uniform((cout, cin, kernel, kernel), 2, -1.0, 1.0, DType::F32).unwrap(),
        )
        .unwrap();
        let config = Conv2dConfig {
            stride: (stride, stride),
            padding: (padding, padding),
            ..Default::default()
        };
        let (mut forward, mut backward) = (vec![], vec![]);
        for _ in 0..7 {
            profile::start();
            let ys = conv2d(&xs, &w, None, config, None).unwrap();
            ys.sum_all().unwrap().backward().unwrap();
            let rows = profile::stop().operations;
            forward.push(rows[0].forward);
            backward.push(rows[0].backward);
        }
        forward.sort();
        backward.sort();
        let out = (side + 2 * padding - kernel) / stride + 1;
        let flop = 2.0 * (batch * cin * cout * kernel * kernel * out * out) as f64;
        let rate = |time: Duration, n: f64| n * flop / time.as_secs_f64() / 1e9;
        println!(
            "{batch}x{cin}->{cout} {side}x{side} k{kernel} s{stride}: forward {:.2} ms {:.0} GFLOP/s, backward {:.2} ms {:.0} GFLOP/s",
            forward[1].as_secs_f64() * 1e3,
            rate(forward[1], 1.0),
            backward[1].as_secs_f64() * 1e3,
            rate(backward[1], 2.0)
        );
    }
}
