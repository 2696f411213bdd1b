//! Collation: samples that are read one by one become one batch.
//!
//! Tensors are stacked along a new first dimension, numbers become a tensor of one dimension, and the
//! parts of a tuple become a tuple of tensors.

use candle_core::{Device, Tensor, WithDType};

use crate::{
    collate::Collated,
    error::{Error, Result},
};

/// A sample, several of which make a batch.
///
/// It is implemented for [`Tensor`], for the numbers u8, u32, i64, f32 and f64, for tuples of two,
/// three or four of them, and for vectors of tensors.
pub trait Stack: Send + Sized + 'static {
    /// What several samples become.
    type Batch: Collated;

    /// The batch of these samples, in order. There is at least one.
    ///
    /// # Errors
    /// Samples whose shapes or types differ.
    fn stack(samples: Vec<Self>) -> Result<Self::Batch>;

    /// The batch of no samples, with the types and the other dimensions of this sample.
    ///
    /// # Errors
    /// Those of candle.
    fn stack_none(like: Self) -> Result<Self::Batch>;
}

impl Stack for Tensor {
    type Batch = Tensor;

    /// # Shapes
    /// B tensors (..) -> (B, ..)
    fn stack(samples: Vec<Self>) -> Result<Tensor> {
        let Some(first) = samples.first() else {
            return Err(no_tensors());
        };
        for (place, sample) in samples.iter().enumerate() {
            if sample.shape() != first.shape() || sample.dtype() != first.dtype() {
                return Err(Error::argument(format!(
                    "sample {place} of the batch is {:?} {:?}, the first one is {:?} {:?}: crop, pad \
                     or convert them to one shape and type",
                    sample.dtype(),
                    sample.shape(),
                    first.dtype(),
                    first.shape()
                )));
            }
        }
        Ok(Tensor::stack(&samples, 0)?.detach())
    }

    fn stack_none(like: Self) -> Result<Tensor> {
        let dims = [&[0], like.dims()].concat();
        Ok(Tensor::zeros(dims, like.dtype(), &Device::Cpu)?)
    }
}

impl Stack for Vec<Tensor> {
    type Batch = Vec<Tensor>;

    fn stack(samples: Vec<Self>) -> Result<Vec<Tensor>> {
        let expected = samples.first().map_or(0, Vec::len);
        if expected == 0 {
            // A batch of no tensors would count as one without samples.
            return Err(no_tensors());
        }
        let mut columns: Vec<Vec<Tensor>> = vec![Vec::with_capacity(samples.len()); expected];
        for (place, sample) in samples.into_iter().enumerate() {
            if sample.len() != expected {
                let got = sample.len();
                return Err(Error::argument(format!(
                    "sample {place} of the batch has {got} tensors, the first one has {expected}"
                )));
            }
            columns.iter_mut().zip(sample).for_each(|(column, tensor)| column.push(tensor));
        }
        columns.into_iter().map(<Tensor as Stack>::stack).collect()
    }

    fn stack_none(like: Self) -> Result<Vec<Tensor>> {
        like.into_iter().map(<Tensor as Stack>::stack_none).collect()
    }
}

fn no_tensors() -> Error {
    Error::argument("0 tensors, the batch has at least 1")
}

/// Numbers -> (B,)
fn numbers<T: WithDType>(samples: Vec<T>) -> Result<Tensor> {
    let count = samples.len();
    Ok(Tensor::from_vec(samples, count, &Device::Cpu)?)
}

macro_rules! stack_numbers {
    ($($number:ty),*) => {$(
        impl Stack for $number {
            type Batch = Tensor;

            fn stack(samples: Vec<Self>) -> Result<Tensor> {
                numbers(samples)
            }

            fn stack_none(_: Self) -> Result<Tensor> {
                numbers::<$number>(Vec::new())
            }
        }
    )*};
}

stack_numbers!(u8, u32, i64, f32, f64);

macro_rules! stack_tuples {
    ($(($($sample:ident: $type:ident),*))*) => {$(
        impl<$($type: Stack<Batch = Tensor>),*> Stack for ($($type,)*) {
            type Batch = ($($type::Batch,)*);

            fn stack(samples: Vec<Self>) -> Result<Self::Batch> {
                let ($($sample,)*): ($(Vec<$type>,)*) = samples.into_iter().collect();
                Ok(($($type::stack($sample)?,)*))
            }

            fn stack_none(($($sample,)*): Self) -> Result<Self::Batch> {
                Ok(($($type::stack_none($sample)?,)*))
            }
        }
    )*};
}

stack_tuples!((a: A, b: B) (a: A, b: B, c: C) (a: A, b: B, c: C, d: D));

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn tensors_numbers_and_tuples_of_them_are_stacked() {
        let row = |start: f32| Tensor::arange(start, start + 2.0, &Device::Cpu).unwrap();
        let (xs, ys, weights) =
            Stack::stack(vec![(row(0.0), 7_u32, 0.5_f64), (row(4.0), 300, 1.5)]).unwrap();
        assert_eq!(xs.to_vec2::<f32>().unwrap(), [[0.0, 1.0], [4.0, 5.0]]);
        assert_eq!(ys.to_vec1::<u32>().unwrap(), [7, 300]);
        assert_eq!(weights.to_vec1::<f64>().unwrap(), [0.5, 1.5]);
        let several = Stack::stack(vec![vec![row(0.0), row(1.0)]; 3]).unwrap();
        assert_eq!((several.len(), several[1].dims()), (2, &[3, 2][..]));
        let four = Stack::stack(vec![(1_u8, 2_i64, 3_f32, 4_u32); 2]).unwrap();
        assert_eq!((four.0.dtype(), four.1.dtype()), (DType::U8, DType::I64));
    }

    #[test]
    fn no_samples_have_the_shape_of_one() {
        let sample = (Tensor::zeros((3, 4), DType::BF16, &Device::Cpu).unwrap(), 1_i64);
        let (xs, ys) = Stack::stack_none(sample).unwrap();
        assert_eq!((xs.dims(), xs.dtype()), (&[0, 3, 4][..], DType::BF16));
        assert_eq!((ys.dims(), ys.dtype()), (&[0][..], DType::I64));
    }

    #[test]
    fn samples_of_different_shapes_types_or_counts_are_errors_that_say_which() {
        let zeros = |len: usize, dtype| Tensor::zeros(len, dtype, &Device::Cpu).unwrap();
        let message = |samples| <Tensor as Stack>::stack(samples).unwrap_err().to_string();
        let text = message(vec![zeros(2, DType::F32), zeros(3, DType::F32)]);
        assert!(
            text.starts_with("sample 1 of the batch is F32 [3], the first one is F32 [2]"),
            "{text}"
        );
        let text = message(vec![zeros(2, DType::F32), zeros(2, DType::U8)]);
        assert!(text.contains("U8 [2]"), "{text}");
        let uneven = vec![vec![zeros(1, DType::U8)], vec![]];
        let text = Stack::stack(uneven).unwrap_err().to_string();
        assert_eq!(text, "sample 1 of the batch has 0 tensors, the first one has 1");
        assert!(<Tensor as Stack>::stack(vec![]).is_err());
        let text = Stack::stack(vec![Vec::<Tensor>::new(); 2]).unwrap_err().to_string();
        assert_eq!(text, "0 tensors, the batch has at least 1");
    }
}
