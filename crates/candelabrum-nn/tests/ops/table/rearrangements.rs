//! Other orders of dimensions, parts of tensors, tensors one after the other, last steps.

use candelabrum_nn::ops;
use candle_core::{D, Result, Tensor};

use super::case::Cases;

const SHAPES: [[usize; 3]; 6] =
    [[3, 5, 4], [1, 2, 7], [2, 1, 1], [0, 3, 2], [2, 3, 0], [9, 31, 301]];

#[test]
fn permute() -> Result<()> {
    let mut cases = Cases::new("permute", &["xs"], &[]);
    for dims in SHAPES {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            cases.add(order, &[&dims], move |t| ops::permute(&t[0], order.to_vec()));
        }
        cases.add("transpose", &[&dims], |t| ops::transpose(&t[0], 0, D::Minus1));
    }
    cases.add("transpose", &[&[3]], |t| ops::transpose(&t[0], 0, 0));
    cases.check()
}

#[test]
fn narrow_and_split() -> Result<()> {
    let mut cases = Cases::new("narrow", &["xs"], &[]);
    for dims in SHAPES {
        for dim in 0..3 {
            let (half, rest) = (dims[dim] / 2, dims[dim] - dims[dim] / 2);
            cases.add(dim, &[&dims], move |t| ops::narrow(&t[0], dim, half, rest));
            cases.add((dim, "parts"), &[&dims], move |t| {
                let parts = ops::split(&ops::scale(&t[0], 2.0)?, &[half, rest], dim)?;
                let views = [ops::silu(&parts[1].t()?)?.t()?, ops::silu(&parts[0].t()?)?.t()?];
                Tensor::cat(&views, dim)
            });
        }
    }
    cases.check()
}

#[test]
fn cat() -> Result<()> {
    let mut cases = Cases::new("cat", &["xs", "ys", "zs"], &[]);
    for dims in SHAPES {
        for dim in 0..3 {
            let (mut two, mut one) = (dims, dims);
            (two[dim], one[dim]) = (2, 1);
            // Some of them twice, once as the input of another operation.
            cases.add(dim, &[&dims, &two, &one], move |t| {
                ops::cat(&[&t[0], &t[1], &t[0], &t[2], &t[2].tanh()?], dim)
            });
        }
    }
    let shapes: Vec<[usize; 2]> = (0..40).map(|i| [2, 1 + i % 3]).collect();
    let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
    cases.add("many", &shapes, |t| ops::cat(&(0..40).map(|i| &t[i]).collect::<Vec<_>>(), 1));
    cases.check()
}

#[test]
fn last_step() -> Result<()> {
    let mut cases = Cases::new("last_step", &["xs"], &[]);
    for dims in [[2, 5, 3], [1, 1, 4], [0, 3, 2], [40, 5, 300]] {
        cases.add("", &[&dims], |t| ops::last_step(&t[0]));
    }
    cases.check()
}
