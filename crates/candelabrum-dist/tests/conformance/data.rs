//! Values of each rank that all ranks can compute, and sequential reductions of them.

use candelabrum_dist::{Element, ReduceOp};
use candelabrum_testkit::split_mix;
use half::{bf16, f16};

/// An element type with its sequential reduction.
pub(crate) trait Value: Element {
    /// A value from 64 random bits.
    fn from_bits(bits: u64) -> Self;

    /// The reduction of one value per rank, in rank order.
    fn reduce(op: ReduceOp, values: &[Self]) -> Self;

    /// The mean of `count` values with this sum.
    fn divided(sum: Self, count: usize) -> Self;

    /// Whether the type has means.
    const HAS_MEAN: bool;
}

/// The values of a rank's buffer. Buffers differ by their `salt`.
pub(crate) fn values<T: Value>(rank: usize, salt: u64, len: usize) -> Vec<T> {
    let start = split_mix(salt << 8 | rank as u64);
    (0..len as u64).map(|i| T::from_bits(split_mix(start ^ i))).collect()
}

/// The reduction of all ranks' [`values`].
pub(crate) fn reduced<T: Value>(op: ReduceOp, world_size: usize, salt: u64, len: usize) -> Vec<T> {
    let all: Vec<Vec<T>> = (0..world_size).map(|rank| values(rank, salt, len)).collect();
    let mut column = Vec::with_capacity(world_size);
    let reduce = |i: usize| {
        column.clear();
        column.extend(all.iter().map(|part| part[i]));
        T::reduce(op, &column)
    };
    (0..len).map(reduce).collect()
}

macro_rules! reduce_floats {
    ($name:ident, $type:ident) => {
        fn $name(op: ReduceOp, values: impl ExactSizeIterator<Item = $type>) -> $type {
            let count = values.len() as $type;
            let pick = |left: bool, a: $type, b: $type| match (a.is_nan() || b.is_nan(), left) {
                (true, _) => $type::NAN,
                (false, true) => a,
                (false, false) => b,
            };
            let combine = |a: $type, b: $type| match op {
                ReduceOp::Min => pick(a < b, a, b),
                ReduceOp::Max => pick(a > b, a, b),
                ReduceOp::Product => a * b,
                _ => a + b,
            };
            let total = values.reduce(combine).expect("at least one rank");
            if op == ReduceOp::Mean { total / count } else { total }
        }
    };
}

reduce_floats!(reduce_f32, f32);
reduce_floats!(reduce_f64, f64);

/// A number between -8 and 8 with a full f32 mantissa, so that a sum depends on its order.
fn float(bits: u64) -> f32 {
    ((bits >> 11) as f64 / (1_u64 << 53) as f64 * 16.0 - 8.0) as f32
}

impl Value for f32 {
    const HAS_MEAN: bool = true;

    fn from_bits(bits: u64) -> Self {
        float(bits)
    }

    fn reduce(op: ReduceOp, values: &[Self]) -> Self {
        reduce_f32(op, values.iter().copied())
    }

    fn divided(sum: Self, count: usize) -> Self {
        sum / count as f32
    }
}

impl Value for f16 {
    const HAS_MEAN: bool = true;

    fn from_bits(bits: u64) -> Self {
        Self::from_f32(float(bits))
    }

    fn reduce(op: ReduceOp, values: &[Self]) -> Self {
        Self::from_f32(reduce_f32(op, values.iter().map(|x| x.to_f32())))
    }

    fn divided(sum: Self, count: usize) -> Self {
        Self::from_f32(sum.to_f32() / count as f32)
    }
}

impl Value for bf16 {
    const HAS_MEAN: bool = true;

    fn from_bits(bits: u64) -> Self {
        Self::from_f32(float(bits))
    }

    fn reduce(op: ReduceOp, values: &[Self]) -> Self {
        Self::from_f32(reduce_f32(op, values.iter().map(|x| x.to_f32())))
    }

    fn divided(sum: Self, count: usize) -> Self {
        Self::from_f32(sum.to_f32() / count as f32)
    }
}

impl Value for f64 {
    const HAS_MEAN: bool = true;

    fn from_bits(bits: u64) -> Self {
        (bits >> 11) as f64 / (1_u64 << 53) as f64 * 16.0 - 8.0
    }

    fn reduce(op: ReduceOp, values: &[Self]) -> Self {
        reduce_f64(op, values.iter().copied())
    }

    fn divided(sum: Self, count: usize) -> Self {
        sum / count as f64
    }
}

macro_rules! integer {
    ($type:ty) => {
        impl Value for $type {
            const HAS_MEAN: bool = false;

            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                let values = values.iter().copied();
                let result = match op {
                    ReduceOp::Min => values.min(),
                    ReduceOp::Max => values.max(),
                    ReduceOp::Product => values.reduce(Self::wrapping_mul),
                    _ => values.reduce(Self::wrapping_add),
                };
                result.expect("at least one rank")
            }

            fn divided(_sum: Self, _count: usize) -> Self {
                unreachable!("integers have no means")
            }
        }
    };
}

integer!(i32);
integer!(u8);
integer!(i64);
