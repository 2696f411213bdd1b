//! Average pooling.

use candelabrum_nn::layers::{AdaptiveAvgPool2d, AvgPool2d, GlobalAvgPool};
use candelabrum_nn::ops::{Pool2dConfig, adaptive_avg_pool2d, avg_pool2d, global_avg_pool2d};
use candelabrum_testkit::assert_close;
use candle_core::{Module, Result};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

#[test]
fn avg_pool2d_is_pytorchs_with_and_without_padding_in_the_mean() -> Result<()> {
    for case in cases("avg_pool2d.safetensors") {
        let [ky, kx, sy, sx, py, px, include] = case.config()?[..] else { panic!("seven numbers") };
        let config = Pool2dConfig { kernel: (ky, kx), stride: (sy, sx), padding: (py, px) };
        check(&case, &["xs"], |t| avg_pool2d(&t["xs"], config, include == 1))?;
    }
    for case in cases("global_avg_pool2d.safetensors") {
        check(&case, &["xs"], |t| global_avg_pool2d(&t["xs"]))?;
    }
    for case in cases("adaptive_avg_pool2d.safetensors") {
        let [height, width] = case.config()?[..] else { panic!("two numbers") };
        check(&case, &["xs"], |t| adaptive_avg_pool2d(&t["xs"], (height, width)))?;
    }
    Ok(())
}

#[test]
fn layers_are_the_operations() -> Result<()> {
    let xs = random((2, 3, 7, 7), 1)?;
    let config = Pool2dConfig { kernel: (3, 3), stride: (2, 2), padding: (1, 1) };
    let layer = AvgPool2d::new(3).stride(2).padding(1);
    assert_close(&layer.forward(&xs)?, &avg_pool2d(&xs, config, true)?, 0.0, 0.0);
    let layer = layer.without_padding_in_mean();
    assert_close(&layer.forward(&xs)?, &avg_pool2d(&xs, config, false)?, 0.0, 0.0);
    assert_eq!(GlobalAvgPool.forward(&xs)?.dims(), [2, 3]);
    let adaptive = AdaptiveAvgPool2d::new(3).forward(&xs)?;
    assert_close(&adaptive, &adaptive_avg_pool2d(&xs, (3, 3))?, 0.0, 0.0);
    // Images of the wanted size stay as they are.
    assert_close(&AdaptiveAvgPool2d::new(7).forward(&xs)?, &xs, 0.0, 0.0);
    Ok(())
}

#[test]
fn windows_that_do_not_fit_are_refused() -> Result<()> {
    let xs = random((1, 3, 4, 4), 1)?;
    let wide = Pool2dConfig { kernel: (2, 2), stride: (2, 2), padding: (2, 0) };
    let error = message(avg_pool2d(&xs, wide, true));
    assert!(error.starts_with("avg_pool2d: padding must be at most half"), "{error}");
    let error = message(avg_pool2d(&xs, Pool2dConfig::square(5), true));
    assert!(error.contains("larger than the padded input"), "{error}");
    let error = message(global_avg_pool2d(&xs.narrow(2, 0, 0)?));
    assert_eq!(error, "global_avg_pool2d: empty images, input [1, 3, 0, 4]");
    let error = message(adaptive_avg_pool2d(&xs, (2, 0)));
    let expected = "adaptive_avg_pool2d: empty images, input [1, 3, 4, 4], result of (2, 0)";
    assert_eq!(error, expected);
    Ok(())
}
