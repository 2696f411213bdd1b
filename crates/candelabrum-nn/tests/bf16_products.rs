//! Products in bf16. The setting counts for the whole process, so this is a program of its own, and its
//! tests take turns.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    AttentionConfig, Conv2dConfig, ProductPrecision, RecurrentWeights, attention, conv2d, gru,
    linear, product_precision, set_product_precision,
};
use candelabrum_testkit::{gradcheck, integers, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};

/// The turn of a test, which leaves the precision as it was.
struct Turn(#[expect(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Self {
        static TURNS: Mutex<()> = Mutex::new(());
        Self(TURNS.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        set_product_precision(ProductPrecision::F32);
    }
}

type Operation<'a> = &'a (dyn Fn(&[Tensor]) -> Result<Tensor> + Sync);

/// A name, the shapes of two inputs, and an operation.
type Named = (&'static str, [Vec<usize>; 2], Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Sync>);

/// The result and the gradients of an operation with products in this precision, on so many threads.
fn step(
    f: Operation<'_>,
    inputs: &[Tensor],
    precision: ProductPrecision,
    threads: usize,
) -> Vec<Vec<f32>> {
    set_product_precision(precision);
    let run = || -> Result<Vec<Vec<f32>>> {
        let vars: Vec<Var> = inputs.iter().map(Var::from_tensor).collect::<Result<_>>()?;
        let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        let ys = f(&tensors)?;
        // Gradients of results that are small whole numbers.
        let weights = integers(ys.elem_count(), 9, 3)?.to_dtype(ys.dtype())?;
        let grads = (&ys.flatten_all()? * (weights - 1.0)?)?.sum_all()?.backward()?;
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let gradients = vars.iter().map(|var| flat(grads.get(var).unwrap()));
        [flat(&ys)].into_iter().chain(gradients).collect()
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(run).unwrap()
}

/// Each algorithm of a convolution, and the products of a linear layer.
fn linear_operations() -> Vec<Named> {
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    let strided = Conv2dConfig { stride: (2, 2), ..padded };
    let conv = |config| {
        let f = move |t: &[Tensor]| conv2d(&t[0], &t[1], None, config, None);
        Box::new(f) as Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Sync>
    };
    vec![
        ("tiles", [vec![2, 17, 19, 15], vec![35, 17, 3, 3]], conv(padded)),
        ("direct", [vec![2, 9, 25, 27], vec![18, 9, 3, 3]], conv(strided)),
        ("small images", [vec![9, 5, 7, 7], vec![16, 5, 3, 3]], conv(strided)),
        ("one by one", [vec![3, 20, 9, 11], vec![17, 20, 1, 1]], conv(Conv2dConfig::default())),
        (
            "groups",
            [vec![2, 20, 9, 11], vec![18, 10, 3, 3]],
            conv(Conv2dConfig { groups: 2, ..padded }),
        ),
        (
            "strided one by one",
            [vec![3, 20, 9, 11], vec![17, 20, 1, 1]],
            conv(Conv2dConfig { stride: (2, 2), ..Conv2dConfig::default() }),
        ),
        ("strided tiles", [vec![2, 17, 19, 15], vec![35, 17, 3, 3]], conv(strided)),
        ("many images", [vec![45, 20, 18, 17], vec![33, 20, 3, 3]], conv(padded)),
        ("linear", [vec![33, 50], vec![19, 50]], Box::new(|t| linear(&t[0], &t[1], None, None))),
    ]
}

/// Small whole numbers are exact in bf16, after Winograd's transforms, too. So nothing may differ.
#[test]
fn products_of_small_whole_numbers_are_exact() {
    let _turn = Turn::take();
    for (name, shapes, f) in linear_operations() {
        let number = |(seed, shape): (u64, &Vec<usize>)| {
            let count = shape.iter().product::<usize>();
            let numbers = integers(count, seed, 5).unwrap().to_dtype(DType::F32).unwrap();
            (numbers - 2.0).unwrap().reshape(&shape[..]).unwrap()
        };
        let inputs: Vec<Tensor> = (1..).zip(&shapes).map(number).collect();
        let exact = step(&f, &inputs, ProductPrecision::F32, 1);
        let rounded = step(&f, &inputs, ProductPrecision::Bf16, 1);
        for (exact, rounded) in exact.iter().zip(&rounded) {
            assert_eq!(exact, rounded, "{name}");
        }
    }
}

/// Everything that multiplies, with random numbers.
fn check_all(check: &dyn Fn(&str, Operation<'_>, &[Tensor])) {
    let random = |shapes: &[Vec<usize>]| -> Vec<Tensor> {
        let tensors = (1..).zip(shapes);
        tensors
            .map(|(seed, shape)| uniform(&shape[..], seed, -1.0, 1.0, DType::F32).unwrap())
            .collect()
    };
    for (name, shapes, f) in linear_operations() {
        check(name, &f, &random(&shapes));
    }
    let config = AttentionConfig::new(2);
    let inputs = random(&[vec![2, 40, 96]]);
    check("attention", &|t| attention(&t[0], None, config), &inputs);
    let weights = [vec![3, 18, 20], vec![60, 20], vec![60, 20], vec![60], vec![60]];
    let recurrent = |t: &[Tensor]| {
        let [xs, w, u, b, c] = t else { unreachable!("five tensors") };
        gru(
            xs,
            RecurrentWeights { weight_ih: w, weight_hh: u, bias_ih: Some(b), bias_hh: Some(c) },
            None,
        )
    };
    check("gru", &recurrent, &random(&weights));
    let relu = Some(Activation::Relu);
    let perceptron = |t: &[Tensor]| linear(&t[0], &t[1], Some(&t[2]), relu);
    check("perceptron", &perceptron, &random(&[vec![33, 50], vec![19, 50], vec![19]]));
}

/// The length of the difference of two vectors, relative to that of the first one.
fn relative_error(exact: &[f32], rounded: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference = exact.iter().zip(rounded).map(|(a, b)| square(f64::from(a - b))).sum::<f64>();
    (difference / exact.iter().map(|&x| square(f64::from(x))).sum::<f64>()).sqrt()
}

#[test]
fn each_operation_differs_from_f32_by_its_rounding() {
    let _turn = Turn::take();
    check_all(&|name, f, inputs| {
        let exact = step(f, inputs, ProductPrecision::F32, 1);
        let rounded = step(f, inputs, ProductPrecision::Bf16, 1);
        assert_eq!(product_precision(), ProductPrecision::Bf16);
        let errors: Vec<f64> = exact
            .iter()
            .zip(&rounded)
            .map(|(exact, rounded)| relative_error(exact, rounded))
            .collect();
        println!("{name}: {errors:.5?}");
        assert!(errors.iter().all(|&error| error < 0.02), "{name}: {errors:?}");
        assert!(exact != rounded, "{name}: nothing is rounded");
    });
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let _turn = Turn::take();
    check_all(&|name, f, inputs| {
        let bits = |threads| {
            let values = step(f, inputs, ProductPrecision::Bf16, threads);
            values.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let one = bits(1);
        for threads in [2, 5] {
            assert!(bits(threads) == one, "{name}: {threads} threads differ from one");
        }
    });
}

/// Sizes whose products are divided over the threads.
#[test]
fn a_large_product_has_the_same_bits_on_any_number_of_threads() {
    let _turn = Turn::take();
    let inputs = [
        uniform((700, 130), 1, -1.0, 1.0, DType::F32).unwrap(),
        uniform((90, 130), 2, -1.0, 1.0, DType::F32).unwrap(),
    ];
    let f = |t: &[Tensor]| linear(&t[0], &t[1], None, None);
    let one = step(&f, &inputs, ProductPrecision::Bf16, 1);
    for threads in [2, 5] {
        assert!(step(&f, &inputs, ProductPrecision::Bf16, threads) == one, "{threads}");
    }
}

#[test]
fn sums_of_nothing_are_zero() {
    let _turn = Turn::take();
    let inputs = [
        Tensor::zeros((33, 0), DType::F32, &Device::Cpu).unwrap(),
        Tensor::zeros((19, 0), DType::F32, &Device::Cpu).unwrap(),
    ];
    let f = |t: &[Tensor]| linear(&t[0], &t[1], None, None);
    let [ys, ..] = &step(&f, &inputs, ProductPrecision::Bf16, 1)[..] else { unreachable!() };
    assert!(ys.len() == 33 * 19 && ys.iter().all(|&y| y == 0.0));
}

#[test]
fn f64_stays_f64() {
    let _turn = Turn::take();
    set_product_precision(ProductPrecision::Bf16);
    let xs = uniform((9, 11), 1, -1.0, 1.0, DType::F64).unwrap();
    let weight = uniform((13, 11), 2, -1.0, 1.0, DType::F64).unwrap();
    gradcheck(|t: &[Tensor]| linear(&t[0], &t[1], None, None), &[xs, weight], 1e-5, 1e-7).unwrap();
}
