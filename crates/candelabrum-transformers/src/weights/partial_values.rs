//! Numbers of one type, read as numbers of another one.

use candle_core::{DType, Device, Shape, Var};
use half::{bf16, f16};

/// The numbers of a parameter, which arrive piece by piece, in its own type.
pub(super) enum PartialValues {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl PartialValues {
    /// A place for `count` numbers of this type. `None` for a type that no parameter has.
    pub(super) fn new(dtype: DType, count: usize) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32(Vec::with_capacity(count)),
            DType::F64 => Self::F64(Vec::with_capacity(count)),
            DType::F16 => Self::F16(Vec::with_capacity(count)),
            DType::BF16 => Self::BF16(Vec::with_capacity(count)),
            _ => return None,
        })
    }

    /// Adds numbers. False if one of them is finite and too large for this type.
    pub(super) fn extend(&mut self, numbers: impl Iterator<Item = f64>) -> bool {
        fn push<T: Copy>(
            all: &mut Vec<T>,
            numbers: impl Iterator<Item = f64>,
            narrow: impl Fn(f64) -> T,
            widen: impl Fn(T) -> f64,
        ) -> bool {
            let mut fits = true;
            for number in numbers {
                let narrowed = narrow(number);
                fits &= !number.is_finite() || widen(narrowed).is_finite();
                all.push(narrowed);
            }
            fits
        }
        match self {
            Self::F32(all) => push(all, numbers, |number| number as f32, f64::from),
            Self::F64(all) => push(all, numbers, |number| number, |number| number),
            Self::F16(all) => push(all, numbers, f16::from_f64, f64::from),
            Self::BF16(all) => push(all, numbers, bf16::from_f64, f64::from),
        }
    }

    /// A variable of these numbers. On the CPU they are not copied.
    pub(super) fn into_variable(
        self,
        shape: &[usize],
        device: &Device,
    ) -> candle_core::Result<Var> {
        let shape = Shape::from(shape);
        let on_host = match self {
            Self::F32(all) => Var::from_vec(all, shape, &Device::Cpu),
            Self::F64(all) => Var::from_vec(all, shape, &Device::Cpu),
            Self::F16(all) => Var::from_vec(all, shape, &Device::Cpu),
            Self::BF16(all) => Var::from_vec(all, shape, &Device::Cpu),
        }?;
        if device.is_cpu() {
            return Ok(on_host);
        }
        Var::from_tensor(&on_host.as_detached_tensor().to_device(device)?)
    }
}
