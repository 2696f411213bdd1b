//! candle's operations on the software GPU against the CPU.

use candle_core::{D, DType, Device, IndexOp, Tensor, Var};

use crate::compare::{assert_close, both, gpu, numbers};

const TYPES: [(DType, f64); 4] =
    [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

#[test]
fn tensors_go_there_and_back() {
    let gpu = gpu();
    let there = Tensor::new(&[1f32, 2., 3.], &gpu).unwrap();
    assert_eq!(there.to_vec1::<f32>().unwrap(), [1., 2., 3.]);
}

#[test]
fn elementwise_operations_agree() {
    let g = &gpu();
    for (dtype, eps) in TYPES {
        let x = |d: &Device| numbers(&[3, 5, 7], dtype, d);
        let y = |d: &Device| numbers(&[3, 7, 5], dtype, d)?.transpose(1, 2);
        let name = |what: &str| format!("{what} {}", dtype.as_str());
        both(&name("add strided"), eps, g, |d| x(d)? + y(d)?);
        both(&name("mul, sub, div"), eps, g, |d| {
            ((x(d)? * y(d)?)? - x(d)?)? / (y(d)?.sqr()? + 1.0)?
        });
        both(&name("exp tanh gelu"), eps, g, |d| x(d)?.exp()?.tanh()?.gelu());
        both(&name("affine"), eps, g, |d| x(d)?.affine(1.5, -0.25));
        both(&name("where"), 0.0, g, |d| {
            x(d)?.gt(&y(d)?.contiguous()?)?.where_cond(&x(d)?, &y(d)?)
        });
        both(&name("cast"), 0.0, g, |d| x(d)?.to_dtype(DType::F32)?.to_dtype(dtype));
    }
}

#[test]
fn reductions_and_products_agree() {
    let g = &gpu();
    for (dtype, eps) in TYPES {
        let x = |d: &Device| numbers(&[3, 5, 7], dtype, d);
        let y = |d: &Device| numbers(&[3, 7, 5], dtype, d)?.transpose(1, 2);
        let name = |what: &str| format!("{what} {}", dtype.as_str());
        both(&name("sum"), eps * 8.0, g, |d| x(d)?.sum(1));
        both(&name("sum all"), eps * 30.0, g, |d| numbers(&[40, 50], dtype, d)?.sum_all());
        both(&name("max strided"), 0.0, g, |d| y(d)?.max(1));
        both(&name("argmin"), 0.0, g, |d| x(d)?.argmin(D::Minus1));
        both(&name("matmul"), eps * 10.0, g, |d| x(d)?.matmul(&numbers(&[3, 7, 4], dtype, d)?));
        both(&name("matmul transposed"), eps * 10.0, g, |d| {
            x(d)?.matmul(&numbers(&[3, 4, 7], dtype, d)?.t()?)
        });
    }
}

#[test]
fn indexing_and_pooling_agree() {
    let g = &gpu();
    for (dtype, _) in TYPES {
        let x = |d: &Device| numbers(&[3, 5, 7], dtype, d);
        let y = |d: &Device| numbers(&[3, 7, 5], dtype, d)?.transpose(1, 2);
        let name = |what: &str| format!("{what} {}", dtype.as_str());
        both(&name("index_select"), 0.0, g, |d| {
            x(d)?.index_select(&Tensor::new(&[4u32, 0, 2], d)?, 1)
        });
        both(&name("cat"), 0.0, g, |d| Tensor::cat(&[x(d)?, y(d)?.contiguous()?], 1));
        both(&name("max_pool2d"), 0.0, g, |d| numbers(&[2, 3, 8, 8], dtype, d)?.max_pool2d(2));
    }
    both("sort", 0.0, g, |d| numbers(&[4, 100], DType::F32, d)?.arg_sort_last_dim(true));
    both("i(..)", 0.0, g, |d| numbers(&[6, 6], DType::F32, d)?.i((1..4, 2..))?.contiguous());
}

#[test]
fn convolutions_and_their_gradients_agree() {
    let gpu = gpu();
    for (stride, padding, dilation, groups) in
        [(1, 1, 1, 1), (2, 1, 1, 1), (2, 0, 1, 2), (1, 2, 2, 1)]
    {
        let on = |device: &Device| -> candle_core::Result<[Tensor; 3]> {
            let x = Var::from_tensor(&numbers(&[2, 4, 9, 9], DType::F32, device)?)?;
            let w = Var::from_tensor(&numbers(&[6, 4 / groups, 3, 3], DType::F32, device)?)?;
            let y = x.conv2d(&w, padding, stride, dilation, groups)?;
            let loss = (&y * numbers(y.dims(), DType::F32, device)?)?.sum_all()?;
            let grads = loss.backward()?;
            Ok([y, grads.get(&x).unwrap().clone(), grads.get(&w).unwrap().clone()])
        };
        let (cpu, gpu) = (on(&Device::Cpu).unwrap(), on(&gpu).unwrap());
        let what = ["forward", "gradient of the input", "gradient of the weights"];
        for ((what, cpu), gpu) in what.iter().zip(&cpu).zip(&gpu) {
            let name = format!("conv2d s{stride} p{padding} d{dilation} g{groups} {what}");
            assert_close(&name, cpu, gpu, 2e-5);
        }
    }
}

#[test]
fn random_numbers_have_the_right_moments() {
    let r = Tensor::randn(0f32, 1., 100_000, &gpu()).unwrap();
    let mean = r.mean_all().unwrap().to_scalar::<f32>().unwrap();
    let variance = r.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
}
