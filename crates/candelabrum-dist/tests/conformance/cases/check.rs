//! The parts of all cases: the communicator, the reductions, and the comparison of results.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_dist::{Communicator, Element, ElementType, ReduceOp};
use half::{bf16, f16};

use crate::data::Value;

pub(crate) type Comm<'a> = &'a (dyn Communicator + 'static);

pub(crate) fn is_bits<T: Element>(got: &[T], expected: &[T], what: impl Debug) {
    assert_eq!(got.len(), expected.len(), "length of {what:?}");
    // One comparison of all bytes is much faster than a comparison of each element.
    if bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(expected) {
        return;
    }
    let any_order = ANY_ORDER.load(Ordering::Relaxed);
    let same = |a: &T, b: &T| {
        let (a, b) = (bytemuck::bytes_of(a), bytemuck::bytes_of(b));
        a == b || (any_order && is_close(T::TYPE, a, b))
    };
    let differs = got.iter().zip(expected).position(|(a, b)| !same(a, b));
    if let Some(i) = differs {
        panic!("{what:?}: element {i} is {:?}, not {:?}", got[i], expected[i]);
    }
}

/// Whether the backend may add in any order.
pub(crate) static ANY_ORDER: AtomicBool = AtomicBool::new(false);

/// Whether two floats differ by no more than the rounding of a few additions of numbers below 8, or
/// of a product of five such numbers.
fn is_close(element: ElementType, a: &[u8], b: &[u8]) -> bool {
    let pair = |read: fn(&[u8]) -> f64| (read(a), read(b));
    let ((a, b), epsilon) = match element {
        ElementType::F64 => (pair(bytemuck::pod_read_unaligned::<f64>), f64::EPSILON),
        ElementType::F32 => {
            (pair(|x| f64::from(bytemuck::pod_read_unaligned::<f32>(x))), f64::from(f32::EPSILON))
        }
        ElementType::F16 => {
            (pair(|x| bytemuck::pod_read_unaligned::<f16>(x).to_f64()), f16::EPSILON.to_f64())
        }
        ElementType::Bf16 => {
            (pair(|x| bytemuck::pod_read_unaligned::<bf16>(x).to_f64()), bf16::EPSILON.to_f64())
        }
        _ => return false,
    };
    (a - b).abs() <= 8.0 * epsilon * (40.0 + a.abs().max(b.abs()))
}

pub(crate) fn operations<T: Value>() -> Vec<ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|&op| op != ReduceOp::Mean || T::HAS_MEAN).collect()
}
