//! Rows of tables.

use candelabrum_nn::ops;
use candelabrum_testkit::integers;
use candle_core::{DType, Device, Result, Tensor};

use super::case::{Arguments, Cases};

#[test]
fn embedding() -> Result<()> {
    let rows = |padding| move |t: &Arguments| ops::embedding(&t[0], &t[1], padding);
    let mut cases = Cases::new("embedding", &["weight"], &["indices"]);
    cases.golden("embedding", |case| {
        let padding = case.tensors["config"].to_vec1::<i64>()?;
        Ok(rows(padding.first().map(|&index| index as usize)))
    })?;
    for padding in [None, Some(2)] {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let indices = integers((4, 3), 2, 5)?.to_dtype(dtype)?.t()?;
            cases.add((padding, dtype), &[&[5, 3]], rows(padding)).constants([indices]);
        }
        let nothing = Tensor::zeros((2, 0), DType::U32, &Device::Cpu)?;
        cases.add(padding, &[&[9, 3]], rows(padding)).constants([nothing]);
        cases.add(padding, &[&[1001, 40]], rows(padding)).constants([integers(500, 9, 1001)?]);
    }
    cases.check()
}

#[test]
fn embedding_with_positions() -> Result<()> {
    let sum = |t: &Arguments| ops::embedding_with_positions(&t[0], &t[1], &t[2]);
    let mut cases = Cases::new("embedding_with_positions", &["weight", "positions"], &["indices"]);
    cases.golden("embedding_with_positions", |_| Ok(sum))?;
    for (n, t) in [(4, 5), (1, 6), (0, 3), (2, 0)] {
        cases.add((n, t), &[&[5, 3], &[6, 3]], sum).constants([integers((n, t), 2, 5)?]);
    }
    let tokens = integers((20, 50), 9, 1001)?;
    cases.add("", &[&[1001, 40], &[50, 40]], sum).constants([tokens]);
    cases.check()
}
