//! A view: some elements of a contiguous tensor, each once, in any order. The gradient of a view
//! belongs in the places of its elements.

use std::ops::Range;

use candle_core::Layout;

use crate::kernels::float::Float;
use crate::kernels::strided::{StoreMode, StridedLoop, transfer};

/// The places of a view's elements in the memory of the whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StridedView {
    start: usize,
    /// Length and step of each dimension.
    dims: Vec<(usize, usize)>,
}

/// Places that repeat: `range` of every `period` places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) period: usize,
    pub(crate) range: Range<usize>,
}

impl StridedView {
    /// The view with this layout. `None` if it has no elements, or has one twice (by broadcasting).
    pub(crate) fn of_layout(layout: &Layout) -> Option<Self> {
        let dims = layout.dims().iter().copied().zip(layout.stride().iter().copied());
        let view = Self { start: layout.start_offset(), dims: dims.collect() };
        let mut reached = 0;
        for (len, step) in view.longest_step_first().into_iter().rev() {
            if len == 0 || step <= reached {
                return None;
            }
            reached += (len - 1) * step;
        }
        Some(view)
    }

    /// `len` positions from `start` on along dimension `dim` of a contiguous tensor.
    pub(crate) fn narrow(shape: &[usize], dim: usize, start: usize, len: usize) -> Self {
        let step = |dim: usize| shape[dim + 1..].iter().product::<usize>();
        let mut dims: Vec<_> = shape.iter().enumerate().map(|(d, &len)| (len, step(d))).collect();
        dims[dim].0 = len;
        Self { start: start * step(dim), dims }
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.dims.iter().map(|(len, _)| len).product()
    }

    /// Copies the view's elements from the whole tensor.
    pub(crate) fn gather<T: Float>(&self, whole: &[T], values: &mut [T]) {
        let mut to = self.len();
        let axes = self.dims.iter().map(|&(len, from)| {
            to /= len.max(1);
            StridedLoop { len, to, from }
        });
        let axes: Vec<StridedLoop> = axes.collect();
        transfer(&axes, values, whole.get(self.start..).unwrap_or_default(), StoreMode::Replace);
    }

    /// Stores values at the places of the view's elements.
    pub(crate) fn scatter<T: Float>(&self, values: &[T], whole: &mut [T], store: StoreMode) {
        let mut from = self.len();
        let axes = self.dims.iter().map(|&(len, to)| {
            from /= len.max(1);
            StridedLoop { len, to, from }
        });
        let mut axes: Vec<StridedLoop> = axes.filter(|axis| axis.len != 1).collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.to));
        transfer(&axes, whole.get_mut(self.start..).unwrap_or_default(), values, store);
    }

    /// The places of the view among `elements` places, if they are a stripe.
    pub(crate) fn stripe(&self, elements: usize) -> Option<Stripe> {
        let mut dims = self.longest_step_first();
        let mut run = 1;
        while let Some((len, _)) = dims.pop_if(|(_, step)| *step == run) {
            run *= len;
        }
        let period = dims.last().map_or(elements, |(_, step)| *step);
        let mut repeated = period;
        while let Some((len, _)) = dims.pop_if(|(_, step)| *step == repeated) {
            repeated *= len;
        }
        let range = self.start..self.start + run;
        let fits = dims.is_empty() && repeated == elements && range.end <= period;
        fits.then_some(Stripe { period, range })
    }

    fn longest_step_first(&self) -> Vec<(usize, usize)> {
        let mut dims: Vec<_> = self.dims.iter().copied().filter(|(len, _)| *len != 1).collect();
        dims.sort_by_key(|(_, step)| std::cmp::Reverse(*step));
        dims
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result, Tensor};

    use super::*;

    fn view_of(tensor: &Tensor) -> Option<StridedView> {
        StridedView::of_layout(tensor.layout())
    }

    #[test]
    fn places_are_those_of_candles_views() -> Result<()> {
        let whole = Tensor::arange(0f64, 210., &Device::Cpu)?.reshape((2, 3, 5, 7))?;
        let numbers = whole.flatten_all()?.to_vec1::<f64>()?;
        let views = [
            whole.clone(),
            whole.narrow(2, 1, 3)?,
            whole.narrow(3, 6, 1)?,
            whole.narrow(0, 1, 1)?.t()?,
            whole.permute((2, 0, 3, 1))?,
            whole.permute((3, 2, 1, 0))?.narrow(1, 2, 2)?.narrow(0, 0, 4)?,
            whole.narrow(1, 0, 2)?.unsqueeze(0)?.squeeze(1).or_else(|_| whole.narrow(1, 0, 2))?,
        ];
        for tensor in &views {
            let view = view_of(tensor).expect("no element occurs twice");
            let expected = tensor.flatten_all()?.to_vec1::<f64>()?;
            let mut values = vec![f64::NAN; view.len()];
            view.gather(&numbers, &mut values);
            assert_eq!(values, expected, "{:?}", tensor.layout());
            let mut back = vec![0.0; numbers.len()];
            view.scatter(&values, &mut back, StoreMode::Replace);
            view.scatter(&values, &mut back, StoreMode::Add);
            for (number, back) in numbers.iter().zip(back) {
                let expected = if expected.contains(number) { 2.0 * number } else { 0.0 };
                assert_eq!(back, expected, "{:?}", tensor.layout());
            }
        }
        Ok(())
    }

    #[test]
    fn narrow_is_candles() -> Result<()> {
        let whole = Tensor::zeros((2, 3, 5, 7), DType::F32, &Device::Cpu)?;
        for (dim, start, len) in [(0, 1, 1), (1, 0, 2), (1, 0, 3), (2, 4, 1), (3, 2, 4)] {
            let view = StridedView::narrow(whole.dims(), dim, start, len);
            assert_eq!(Some(view), view_of(&whole.narrow(dim, start, len)?));
        }
        Ok(())
    }

    #[test]
    fn stripes_repeat_over_the_whole_tensor() -> Result<()> {
        let whole = Tensor::zeros((2, 3, 5, 7), DType::F32, &Device::Cpu)?;
        let stripe = |tensor: Tensor| view_of(&tensor).and_then(|view| view.stripe(210));
        let some = |period, range| Some(Stripe { period, range });
        assert_eq!(stripe(whole.clone()), some(210, 0..210));
        assert_eq!(stripe(whole.permute((3, 0, 2, 1))?), some(210, 0..210));
        assert_eq!(stripe(whole.narrow(0, 1, 1)?), some(210, 105..210));
        assert_eq!(stripe(whole.narrow(1, 1, 2)?), some(105, 35..105));
        assert_eq!(stripe(whole.narrow(2, 2, 3)?.t()?), some(35, 14..35));
        assert_eq!(stripe(whole.narrow(3, 6, 1)?), some(7, 6..7));
        assert_eq!(stripe(whole.narrow(3, 6, 1)?.narrow(1, 0, 2)?), None);
        assert_eq!(stripe(whole.narrow(3, 0, 3)?.narrow(2, 0, 2)?), None);
        Ok(())
    }

    #[test]
    fn an_element_that_occurs_twice_has_no_view() -> Result<()> {
        let row = Tensor::zeros((1, 5), DType::F32, &Device::Cpu)?;
        assert_eq!(view_of(&row.broadcast_as((3, 5))?), None);
        assert_eq!(view_of(&row.narrow(1, 0, 0)?), None);
        assert!(view_of(&row.broadcast_as((1, 5))?).is_some());
        Ok(())
    }
}
