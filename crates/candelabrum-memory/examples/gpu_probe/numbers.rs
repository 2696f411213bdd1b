//! Numbers on the GPU at any place of their memory, and what an operation wrote around them.

use std::mem::ManuallyDrop;

use anyhow::Result;
use candelabrum_memory::cuda::{CudaMemory, CudaNumbers, CudaNumbersMut};
use candelabrum_memory::{ElementType, Flat};
use cudarc::driver::{CudaSlice, DevicePtr};
use half::{bf16, f16};

use crate::probe::Probe;

/// The value of the numbers before and behind a result, which is exact in all types.
const GUARD: f32 = -7.0;
/// The guarded numbers behind a result.
const BEHIND: usize = 8;

/// Numbers that begin so many numbers after the beginning of their memory.
pub(crate) struct Numbers {
    /// The numbers from there on. Their memory is that of `whole`, which frees it.
    part: ManuallyDrop<Flat>,
    whole: CudaSlice<u8>,
    offset: usize,
}

impl Numbers {
    /// These values, rounded to the type.
    pub(crate) fn new(probe: &Probe, element: ElementType, values: &[f32]) -> Result<Self> {
        Self::at(probe, element, values, 0, values.len())
    }

    /// A result that nothing has written yet.
    pub(crate) fn unset(
        probe: &Probe,
        element: ElementType,
        len: usize,
        offset_bytes: usize,
    ) -> Result<Self> {
        let offset = offset_bytes / element.size();
        let mut values = vec![GUARD; offset + len + BEHIND];
        values[offset..offset + len].fill(f32::NAN);
        Self::at(probe, element, &values, offset, len)
    }

    fn at(
        probe: &Probe,
        element: ElementType,
        values: &[f32],
        offset: usize,
        len: usize,
    ) -> Result<Self> {
        let (size, host) = (element.size(), on_host(element, values));
        let mut whole = probe.stream.alloc_zeros::<u8>(host.byte_len().max(1))?;
        probe.stream.memcpy_htod(host.bytes(), &mut whole)?;
        let at = whole.device_ptr(&probe.stream).0 + (offset * size) as u64;
        // SAFETY: the bytes lie in `whole`, which lives as long as they do, and are never freed.
        let part = unsafe { probe.stream.upgrade_device_ptr::<u8>(at, len * size) };
        let part = ManuallyDrop::new(Flat::cuda(element, len, CudaMemory(part)));
        Ok(Self { part, whole, offset })
    }

    pub(crate) fn read(&self) -> Result<CudaNumbers<'_>> {
        Ok(self.part.cuda_numbers()?)
    }

    pub(crate) fn write(&mut self) -> Result<CudaNumbersMut<'_>> {
        Ok(self.part.cuda_numbers_mut()?)
    }

    /// The values, and whether the numbers around them are as before.
    pub(crate) fn values(&self) -> Result<(Vec<f32>, bool)> {
        let (element, len) = (self.part.element_type(), self.part.len());
        let mut host = Flat::zeros(element, self.whole.len() / element.size());
        self.whole.stream().memcpy_dtoh(&self.whole, host.bytes_mut())?;
        self.whole.stream().synchronize()?;
        let all = to_f32(&host)?;
        let behind = &all[self.offset + len..];
        let is_kept = all[..self.offset].iter().chain(behind).all(|&value| value == GUARD);
        Ok((all[self.offset..self.offset + len].to_vec(), is_kept))
    }
}

fn on_host(element: ElementType, values: &[f32]) -> Flat {
    match element {
        ElementType::F16 => {
            Flat::from_slice(&values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>())
        }
        ElementType::Bf16 => {
            Flat::from_slice(&values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
        }
        _ => Flat::from_slice(values),
    }
}

fn to_f32(host: &Flat) -> Result<Vec<f32>> {
    Ok(match host.element_type() {
        ElementType::F16 => host.as_slice::<f16>()?.iter().map(|x| x.to_f32()).collect(),
        ElementType::Bf16 => host.as_slice::<bf16>()?.iter().map(|x| x.to_f32()).collect(),
        _ => host.as_slice::<f32>()?.to_vec(),
    })
}

/// `len` values in [-1, 1], rounded to the type, which differ for each seed.
pub(crate) fn drawn(element: ElementType, len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..len).map(|_| rounded(element, next() as f32)).collect()
}

fn rounded(element: ElementType, x: f32) -> f32 {
    match element {
        ElementType::F16 => f16::from_f32(x).to_f32(),
        ElementType::Bf16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// How far numbers may be from those of f64, as a part of their length as a vector.
pub(crate) fn bound(element: ElementType, tf32: bool) -> f64 {
    match element {
        ElementType::F16 => 2e-3,
        ElementType::Bf16 => 1.5e-2,
        _ if tf32 => 2e-3,
        _ => 1e-5,
    }
}

/// The distance as a part of the length of `expected`, and the largest distance of one number. NaN if a number is
/// missing.
pub(crate) fn distance(got: &[f32], expected: &[f64]) -> (f64, f64) {
    let (mut squares, mut all, mut largest) = (0.0, 0.0, 0.0_f64);
    for (&got, &expected) in got.iter().zip(expected) {
        let apart = (f64::from(got) - expected).abs();
        squares += apart * apart;
        all += expected * expected;
        largest = if apart.is_nan() { apart } else { largest.max(apart) };
    }
    ((squares / all.max(f64::MIN_POSITIVE)).sqrt(), largest)
}
