//! What a batch is: one or several tensors whose first dimension counts samples.
//!
//! A reader's thread makes a batch on the CPU. The training thread moves it to the device, because on
//! CUDA a second host thread would mean a second stream, and a copy on one stream is not ordered
//! before a kernel on another.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// The samples of one step on one rank.
///
/// It is implemented for [`Batch`](crate::Batch), for [`Tensor`], for vectors of tensors and for
/// tuples of two, three or four tensors. A struct of one's own implements it in a few lines:
///
/// ```
/// use candelabrum_datasets::{Collated, Result};
/// use candle_core::{DType, Device, Tensor};
///
/// struct Boxes { images: Tensor, corners: Tensor, classes: Tensor }
///
/// impl Collated for Boxes {
///     fn len(&self) -> usize {
///         self.images.len()
///     }
///     fn to(self, device: &Device, dtype: DType) -> Result<Self> {
///         let (images, corners, classes) =
///             (self.images, self.corners, self.classes).to(device, dtype)?;
///         Ok(Self { images, corners, classes })
///     }
/// }
/// ```
pub trait Collated: Send + Sized + 'static {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Whether this rank has no samples in this step. This happens at the end of an evaluation with
    /// [`Remainder::Keep`](crate::Remainder::Keep). The tensors of an empty batch stay on the CPU,
    /// whatever the device, so check this before you use them.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same batch on a device. Tensors of floating-point numbers get the type `dtype`, and
    /// tensors of integers keep theirs. Called on the training thread.
    ///
    /// # Errors
    /// Those of the device.
    fn to(self, device: &Device, dtype: DType) -> Result<Self>;
}

impl Collated for Tensor {
    /// The first dimension. A tensor without dimensions is one sample.
    fn len(&self) -> usize {
        self.dims().first().copied().unwrap_or(1)
    }

    fn to(self, device: &Device, dtype: DType) -> Result<Self> {
        // CUDA cannot allocate 0 bytes.
        let moved = if self.elem_count() == 0 { self } else { self.to_device(device)? };
        if moved.dtype().is_float() { Ok(moved.to_dtype(dtype)?) } else { Ok(moved) }
    }
}

impl Collated for Vec<Tensor> {
    /// The first dimension of the first tensor.
    fn len(&self) -> usize {
        self.first().map_or(0, Collated::len)
    }

    fn to(self, device: &Device, dtype: DType) -> Result<Self> {
        self.into_iter().map(|tensor| tensor.to(device, dtype)).collect()
    }
}

macro_rules! collated_tuples {
    ($(($($tensor:ident: $type:ty),*))*) => {$(
        impl Collated for ($($type,)*) {
            fn len(&self) -> usize {
                self.0.len()
            }

            fn to(self, device: &Device, dtype: DType) -> Result<Self> {
                let ($($tensor,)*) = self;
                Ok(($($tensor.to(device, dtype)?,)*))
            }
        }
    )*};
}

collated_tuples!(
    (a: Tensor, b: Tensor)
    (a: Tensor, b: Tensor, c: Tensor)
    (a: Tensor, b: Tensor, c: Tensor, d: Tensor)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_get_the_type_and_integers_keep_theirs() {
        let tensor = |dtype| Tensor::zeros((3, 2), dtype, &Device::Cpu).unwrap();
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let moved = tensor(dtype).to(&Device::Cpu, DType::BF16).unwrap();
            assert_eq!((moved.dtype(), moved.len()), (DType::BF16, 3));
        }
        for dtype in [DType::U8, DType::U32, DType::I64] {
            assert_eq!(tensor(dtype).to(&Device::Cpu, DType::F16).unwrap().dtype(), dtype);
        }
        let pair = (tensor(DType::F64), tensor(DType::U32)).to(&Device::Cpu, DType::F32).unwrap();
        assert_eq!((pair.0.dtype(), pair.1.dtype(), pair.len()), (DType::F32, DType::U32, 3));
        let many = vec![tensor(DType::U8), tensor(DType::F16)].to(&Device::Cpu, DType::F32);
        assert_eq!(many.unwrap()[1].dtype(), DType::F32);
    }

    #[test]
    fn a_batch_counts_its_samples() {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        assert_eq!((zeros(&[4, 2]).len(), zeros(&[]).len(), Vec::<Tensor>::new().len()), (4, 1, 0));
        let empty = (zeros(&[0, 3]), zeros(&[0]), zeros(&[0]));
        assert!(empty.is_empty());
        assert_eq!((zeros(&[2]), zeros(&[2]), zeros(&[2]), zeros(&[2])).len(), 2);
    }
}
