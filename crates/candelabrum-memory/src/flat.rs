//! Numbers of one type, one after the other, in any kind of memory.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use candle_core::{Device, Tensor};

use crate::cuda::{self, CudaMemory, CudaNumbers, CudaNumbersMut};
use crate::error::{check_len, kernel_on_host};
use crate::{Element, ElementType, Error, Result, Span, SpanMut};

/// The memory of numbers: host memory, or the memory of one GPU.
#[derive(Clone, Debug)]
pub struct Location(Device);

impl Location {
    /// Memory that this processor can reach.
    pub const HOST: Self = Self(Device::Cpu);

    /// Whether this is host memory.
    pub fn is_host(&self) -> bool {
        self.0.is_cpu()
    }

    /// The memory of a device of candle.
    pub fn from_device(device: &Device) -> Self {
        Self(device.clone())
    }
}

/// Memory of this process. A backend gives other processes a copy or a mapping of it.
pub trait SharedMemory: Send + Sync {
    /// This process's bytes.
    fn bytes(&self) -> &[u8];
    /// This process's bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Lets the backend that made the memory recover its own type.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// `len` numbers of one type: on the heap, in memory that a backend shares between processes, or on a
/// device.
pub struct FlatTensor {
    element: ElementType,
    len: usize,
    store: FlatMemory,
}

enum FlatMemory {
    Heap(HeapBytes),
    Shared(Box<dyn SharedMemory>),
    Cuda(CudaMemory),
}

/// Bytes of a cache line. Vectors that lie across two lines take twice as long to load.
pub const CACHE_LINE: usize = 64;

/// Bytes on the heap that start with a cache line.
struct HeapBytes {
    words: Vec<u64>,
    /// The first word of the first whole line.
    start: usize,
}

impl HeapBytes {
    fn zeros(bytes: usize) -> Self {
        // The allocator gives zeros without touching them, but only at its own alignment.
        let words = vec![0_u64; (bytes + CACHE_LINE).div_ceil(size_of::<u64>())];
        let start = words.as_ptr().align_offset(CACHE_LINE);
        Self { words, start }
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[self.start..])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words[self.start..])
    }
}

impl FlatTensor {
    /// Zeros at a location. For the host, they are on the heap.
    ///
    /// The numbers of a GPU cannot be borrowed as slices, only as spans. [`Self::to_host`],
    /// [`Self::copy_from_host`], [`Self::copy_from_tensor`] and [`Self::copy_to_tensor`] copy them.
    ///
    /// # Errors
    /// Too little memory, or a device that this build does not support.
    pub fn zeros_on(location: &Location, element: ElementType, len: usize) -> Result<Self> {
        match &location.0 {
            Device::Cpu => Ok(Self::zeros(element, len)),
            Device::Cuda(_) => {
                let memory = cuda::zeros(&location.0, len * element.size())?;
                Ok(Self::cuda(element, len, memory))
            }
            Device::Metal(_) => Err(Error::Unsupported { what: "a buffer on Metal".to_owned() }),
        }
    }

    /// Zeros on the heap.
    pub fn zeros(element: ElementType, len: usize) -> Self {
        Self { element, len, store: FlatMemory::Heap(HeapBytes::zeros(len * element.size())) }
    }

    /// A copy of `values` on the heap.
    pub fn from_slice<T: Element>(values: &[T]) -> Self {
        let mut flat = Self::zeros(T::TYPE, values.len());
        flat.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        flat
    }

    /// `len` numbers in memory that a backend shares between processes. The memory must be large
    /// enough.
    pub fn shared(element: ElementType, len: usize, memory: Box<dyn SharedMemory>) -> Self {
        Self { element, len, store: FlatMemory::Shared(memory) }
    }

    /// `len` numbers in the memory of a GPU, which must be large enough.
    pub fn cuda(element: ElementType, len: usize, memory: CudaMemory) -> Self {
        Self { element, len, store: FlatMemory::Cuda(memory) }
    }

    /// The same memory as `len` numbers: the first ones, or more of them where the memory has room.
    ///
    /// # Errors
    /// [`Error::Length`] if the memory is too small.
    pub fn with_len(mut self, len: usize) -> Result<Self> {
        let room = self.room() / self.element.size();
        if len > room {
            return Err(Error::Length { op: "a buffer's memory", expected: len, got: room });
        }
        self.len = len;
        Ok(self)
    }

    /// The bytes of the memory, which may have room for more numbers.
    pub fn room(&self) -> usize {
        match &self.store {
            FlatMemory::Heap(heap) => heap.bytes().len(),
            FlatMemory::Shared(memory) => memory.bytes().len(),
            FlatMemory::Cuda(memory) => memory.room(),
        }
    }

    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bytes of the numbers, in any kind of memory.
    pub fn byte_len(&self) -> usize {
        self.len * self.element.size()
    }

    /// Whether the numbers are in memory that this processor cannot access.
    pub fn is_on_device(&self) -> bool {
        matches!(self.store, FlatMemory::Cuda(_))
    }

    /// Whether the numbers are in memory that the processes of a host share.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, FlatMemory::Shared(_))
    }

    /// Refuses numbers that this processor cannot read.
    ///
    /// # Errors
    /// [`Error::OnDevice`].
    pub fn check_on_host(&self) -> Result<()> {
        if self.is_on_device() { Err(Error::OnDevice) } else { Ok(()) }
    }

    /// All numbers, which must be f32, as a span.
    ///
    /// # Errors
    /// [`Error::ElementType`] for numbers of another type.
    pub fn span(&self) -> Result<Span<'_>> {
        match &self.store {
            FlatMemory::Cuda(memory) => {
                self.check_type::<f32>()?;
                Ok(Span::Cuda(memory.span(self.len)))
            }
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => Ok(Span::Host(self.as_slice()?)),
        }
    }

    /// All numbers, which must be f32, as a mutable span.
    ///
    /// # Errors
    /// [`Error::ElementType`] for numbers of another type.
    pub fn span_mut(&mut self) -> Result<SpanMut<'_>> {
        self.check_type::<f32>()?;
        let count = self.byte_len();
        let bytes = match &mut self.store {
            FlatMemory::Heap(heap) => &mut heap.bytes_mut()[..count],
            FlatMemory::Shared(memory) => &mut memory.bytes_mut()[..count],
            FlatMemory::Cuda(memory) => return Ok(SpanMut::Cuda(memory.span_mut(self.len))),
        };
        Ok(SpanMut::Host(bytemuck::cast_slice_mut(bytes)))
    }

    /// All numbers, which must be f32, f16 or bf16 and on a GPU.
    ///
    /// # Errors
    /// Numbers of another type, or in host memory.
    pub fn cuda_numbers(&self) -> Result<CudaNumbers<'_>> {
        let memory = self.cuda_memory().ok_or_else(kernel_on_host)?;
        memory.numbers(self.element, self.len)
    }

    /// All numbers, which must be f32, f16 or bf16 and on a GPU, mutable.
    ///
    /// # Errors
    /// Those of [`Self::cuda_numbers`].
    pub fn cuda_numbers_mut(&mut self) -> Result<CudaNumbersMut<'_>> {
        let (element, len) = (self.element, self.len);
        let memory = self.cuda_memory_mut().ok_or_else(kernel_on_host)?;
        memory.numbers_mut(element, len)
    }

    /// Some of the numbers, which must be f32.
    ///
    /// # Errors
    /// [`Error::ElementType`] for numbers of another type, [`Error::Length`] for a range that is
    /// not inside.
    pub fn range(&self, range: Range<usize>) -> Result<Span<'_>> {
        self.check_range(&range)?;
        Ok(self.span()?.range(range))
    }

    /// Some of the numbers, which must be f32, mutable.
    ///
    /// # Errors
    /// Those of [`Self::range`].
    pub fn range_mut(&mut self, range: Range<usize>) -> Result<SpanMut<'_>> {
        self.check_range(&range)?;
        Ok(self.span_mut()?.range(range))
    }

    /// The numbers.
    ///
    /// # Errors
    /// [`Error::ElementType`] if `T` is not the numbers' type, [`Error::OnDevice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The numbers, mutable.
    ///
    /// # Errors
    /// Those of [`Self::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// A copy of the numbers.
    ///
    /// # Errors
    /// Those of [`Self::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice()?.to_vec())
    }

    /// The numbers' bytes, in this machine's order. Empty for numbers on a device: see
    /// [`Self::check_on_host`].
    pub fn bytes(&self) -> &[u8] {
        let count = self.byte_len();
        match &self.store {
            FlatMemory::Heap(heap) => &heap.bytes()[..count],
            FlatMemory::Shared(memory) => &memory.bytes()[..count],
            FlatMemory::Cuda(_) => &[],
        }
    }

    /// The numbers' bytes, mutable. Empty for numbers on a device.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let count = self.byte_len();
        match &mut self.store {
            FlatMemory::Heap(heap) => &mut heap.bytes_mut()[..count],
            FlatMemory::Shared(memory) => &mut memory.bytes_mut()[..count],
            FlatMemory::Cuda(_) => &mut [],
        }
    }

    /// A copy on the heap.
    ///
    /// # Errors
    /// The device's error.
    pub fn to_host(&self) -> Result<Self> {
        let mut copy = Self::zeros(self.element, self.len);
        match &self.store {
            FlatMemory::Cuda(memory) => memory.read(copy.bytes_mut())?,
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => {
                copy.bytes_mut().copy_from_slice(self.bytes());
            }
        }
        Ok(copy)
    }

    /// Replaces the numbers by `from`, which must be on the host and have the same type and length.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::ElementType`], [`Error::OnDevice`], or the device's error.
    pub fn copy_from_host(&mut self, from: &Self) -> Result<()> {
        if from.element != self.element {
            return Err(Error::ElementType { expected: self.element, got: from.element });
        }
        check_len("copy_from_host", self.len, from.len)?;
        from.check_on_host()?;
        match &mut self.store {
            FlatMemory::Cuda(memory) => memory.write(from.bytes()),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => {
                self.bytes_mut().copy_from_slice(from.bytes());
                Ok(())
            }
        }
    }

    /// Replaces numbers on a GPU by the elements of a contiguous tensor there, of the same type and
    /// length. The copy runs after earlier work on the tensor.
    ///
    /// # Errors
    /// A tensor of another type or on another device. Numbers on the host: write to their slice
    /// instead.
    pub fn copy_from_tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let (element, len) = (self.element, self.len);
        match &mut self.store {
            FlatMemory::Cuda(memory) => memory.copy_from_tensor(element, len, tensor),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => Err(on_host("copy_from_tensor")),
        }
    }

    /// Replaces the elements of a contiguous tensor on a GPU by numbers there, of the same type and
    /// length. Later work on the tensor runs after the copy.
    ///
    /// # Errors
    /// A tensor of another type or on another device. Numbers on the host: read their slice
    /// instead.
    pub fn copy_to_tensor(&self, tensor: &Tensor) -> Result<()> {
        match &self.store {
            FlatMemory::Cuda(memory) => memory.copy_to_tensor(self.element, self.len, tensor),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => Err(on_host("copy_to_tensor")),
        }
    }

    /// The backend's own memory, if the numbers are in shared memory of type `M`.
    pub fn shared_memory<M: SharedMemory + 'static>(&mut self) -> Option<&mut M> {
        match &mut self.store {
            FlatMemory::Shared(memory) => memory.as_any_mut().downcast_mut(),
            FlatMemory::Heap(_) | FlatMemory::Cuda(_) => None,
        }
    }

    /// The GPU's memory, if the numbers are there.
    pub fn cuda_memory(&self) -> Option<&CudaMemory> {
        match &self.store {
            FlatMemory::Cuda(memory) => Some(memory),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => None,
        }
    }

    /// The GPU's memory, if the numbers are there.
    pub fn into_cuda_memory(self) -> Option<CudaMemory> {
        match self.store {
            FlatMemory::Cuda(memory) => Some(memory),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => None,
        }
    }

    /// The GPU's memory, mutable, if the numbers are there.
    pub fn cuda_memory_mut(&mut self) -> Option<&mut CudaMemory> {
        match &mut self.store {
            FlatMemory::Cuda(memory) => Some(memory),
            FlatMemory::Heap(_) | FlatMemory::Shared(_) => None,
        }
    }

    fn check<T: Element>(&self) -> Result<()> {
        self.check_type::<T>()?;
        self.check_on_host()
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        let (expected, got) = (self.element, T::TYPE);
        if expected == got { Ok(()) } else { Err(Error::ElementType { expected, got }) }
    }

    fn check_range(&self, range: &Range<usize>) -> Result<()> {
        let (expected, got) = (range.end, self.len);
        let is_inside = range.start <= range.end && range.end <= self.len;
        if is_inside { Ok(()) } else { Err(Error::Length { op: "range", expected, got }) }
    }
}

fn on_host(what: &str) -> Error {
    let what = format!("{what} of a buffer on the host, whose elements `as_slice` gives,");
    Error::Unsupported { what }
}

impl fmt::Debug for FlatTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flat({} × {})", self.len, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_they_were_put_in() -> Result<()> {
        let mut flat = FlatTensor::from_slice(&[1.5_f32, -2.0, 3.0]);
        flat.as_mut_slice::<f32>()?[1] = 7.0;
        assert_eq!(flat.to_vec::<f32>()?, [1.5, 7.0, 3.0]);
        assert_eq!(flat.bytes().len(), 12);
        assert_eq!(flat.range(1..3)?.host()?, [7.0, 3.0]);
        assert!(flat.range_mut(2..4).is_err());
        assert!(FlatTensor::from_slice::<u8>(&[]).is_empty());
        Ok(())
    }

    #[test]
    fn numbers_at_the_hosts_location_are_on_the_heap() -> Result<()> {
        let mut flat = FlatTensor::zeros_on(&Location::HOST, ElementType::F32, 3)?;
        assert_eq!(flat.to_vec::<f32>()?, [0.0; 3]);
        let tensor = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu)?;
        let message = flat.copy_from_tensor(&tensor).unwrap_err().to_string();
        assert!(message.contains("as_slice"), "{message}");
        assert!(flat.copy_to_tensor(&tensor).is_err());
        Ok(())
    }

    #[test]
    fn the_wrong_type_is_refused() {
        let error = FlatTensor::from_slice(&[1_i32]).as_slice::<f32>().unwrap_err();
        assert!(error.to_string().contains("i32") && error.to_string().contains("f32"));
    }
}
