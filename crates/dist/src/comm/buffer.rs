//! Memory that a collective works on, owned by exactly one side at a time.
//!
//! Starting a collective moves its [`Buffer`] to the communicator, waiting gives it back:
//! nobody can look at numbers that are still in flight.

use std::fmt;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::{Element, ElementType, nccl};
use crate::{Error, Result};

/// `len` elements of one type: on the heap, or where a backend's ranks can all reach them.
pub struct Buffer {
    element: ElementType,
    len: usize,
    storage: Storage,
    /// Lengths that add up to `len`.
    parts: Option<Box<[usize]>>,
    source: Option<usize>,
    label: Option<Arc<str>>,
}

enum Storage {
    /// u64 for the alignment.
    Heap(Vec<u64>),
    Shared(Box<dyn SharedMemory>),
    Device(Box<dyn DeviceMemory>),
}

/// This rank's part of memory that a backend shares between ranks.
pub(crate) trait SharedMemory: Send {
    /// This rank's bytes.
    fn bytes(&self) -> &[u8];
    /// This rank's bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// For the backend that made it to find its own type again.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;
}

/// Memory that this processor cannot reach, only copy from and to.
pub trait DeviceMemory: Send {
    /// Copies its first bytes to the host.
    ///
    /// # Errors
    /// What the device says.
    fn read(&self, to: &mut [u8]) -> Result<()>;

    /// Copies to its first bytes from the host.
    ///
    /// # Errors
    /// What the device says.
    fn write(&mut self, from: &[u8]) -> Result<()>;

    /// Fills it with a tensor's `len` elements, on the device.
    ///
    /// # Errors
    /// A tensor of another kind or place; what the device says.
    fn copy_from_tensor(&mut self, element: ElementType, len: usize, tensor: &Tensor)
    -> Result<()>;

    /// Fills a tensor with its `len` elements, on the device.
    ///
    /// # Errors
    /// A tensor of another kind or place; what the device says.
    fn copy_to_tensor(&self, element: ElementType, len: usize, tensor: &Tensor) -> Result<()>;

    /// For the backend that made it to find its own type again.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;
}

impl Buffer {
    /// Zeros in the memory of `device`: on the heap for the CPU.
    ///
    /// The elements of a buffer on a GPU are not to be had as slices: [`Self::to_host`],
    /// [`Self::copy_from_host`], [`Self::copy_from_tensor`] and [`Self::copy_to_tensor`] copy them.
    ///
    /// # Errors
    /// Not enough memory, or a device that no backend of this build works on.
    pub fn zeros_on(device: &Device, element: ElementType, len: usize) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::zeros(element, len)),
            Device::Cuda(_) => nccl::zeros(device, element, len),
            Device::Metal(_) => Err(Error::Unsupported { what: "a buffer on Metal".to_owned() }),
        }
    }

    /// Zeros on the heap.
    pub fn zeros(element: ElementType, len: usize) -> Self {
        let words = (len * element.size()).div_ceil(8);
        Self::new(element, len, Storage::Heap(vec![0; words]))
    }

    /// A copy of `values` on the heap.
    pub fn from_slice<T: Element>(values: &[T]) -> Self {
        let mut buffer = Self::zeros(T::TYPE, values.len());
        buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        buffer
    }

    /// No elements.
    pub(crate) fn empty() -> Self {
        Self::zeros(ElementType::U8, 0)
    }

    pub(crate) fn shared(element: ElementType, len: usize, memory: Box<dyn SharedMemory>) -> Self {
        Self::new(element, len, Storage::Shared(memory))
    }

    /// `len` elements in a device's memory, which must be large enough.
    pub fn on_device(element: ElementType, len: usize, memory: Box<dyn DeviceMemory>) -> Self {
        Self::new(element, len, Storage::Device(memory))
    }

    fn new(element: ElementType, len: usize, storage: Storage) -> Self {
        Self { element, len, storage, parts: None, source: None, label: None }
    }

    /// Cuts it into parts of these lengths, one per rank, for [`Collective::AllToAllV`].
    ///
    /// # Errors
    /// [`Error::Length`] where they do not add up to its length.
    ///
    /// [`Collective::AllToAllV`]: super::Collective::AllToAllV
    pub fn with_parts(mut self, parts: impl Into<Box<[usize]>>) -> Result<Self> {
        let parts = parts.into();
        let sum = parts.iter().try_fold(0_usize, |sum, &part| sum.checked_add(part));
        if sum != Some(self.len) {
            let (expected, got) = (self.len, sum.unwrap_or(usize::MAX));
            return Err(Error::Length { op: "the parts of a buffer", expected, got });
        }
        self.parts = Some(parts);
        Ok(self)
    }

    /// The lengths of its parts, one per rank: as it was cut, or as an operation gives them whose
    /// ranks send different amounts.
    pub fn parts(&self) -> Option<&[usize]> {
        self.parts.as_deref()
    }

    /// The rank that a message came from, where any could have sent it.
    pub fn source(&self) -> Option<usize> {
        self.source
    }

    /// Says who sent it.
    pub(crate) fn with_source(mut self, source: usize) -> Self {
        self.source = Some(source);
        self
    }

    /// Says what is in it, for messages about waits and failures: `bucket 2: conv1.weight`.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// What is in it, if that was said.
    pub fn label(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    /// The type of its elements.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the elements lie where this processor cannot reach them.
    pub fn is_on_device(&self) -> bool {
        matches!(self.storage, Storage::Device(_))
    }

    /// A copy on the heap.
    ///
    /// # Errors
    /// What the device says.
    pub fn to_host(&self) -> Result<Self> {
        let mut copy = Self::zeros(self.element, self.len);
        match &self.storage {
            Storage::Device(memory) => memory.read(copy.bytes_mut())?,
            Storage::Heap(_) | Storage::Shared(_) => {
                copy.bytes_mut().copy_from_slice(self.bytes());
            }
        }
        Ok(copy)
    }

    /// Replaces the elements by those of a buffer on the host, of the same type and length.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::ElementType`], [`Error::OnDevice`], or what the device says.
    pub fn copy_from_host(&mut self, from: &Self) -> Result<()> {
        if from.element != self.element {
            return Err(Error::ElementType { expected: self.element, got: from.element });
        }
        if from.len != self.len {
            let (expected, got) = (self.len, from.len);
            return Err(Error::Length { op: "copy_from_host", expected, got });
        }
        from.check_on_host()?;
        match &mut self.storage {
            Storage::Device(memory) => memory.write(from.bytes()),
            Storage::Heap(_) | Storage::Shared(_) => {
                self.bytes_mut().copy_from_slice(from.bytes());
                Ok(())
            }
        }
    }

    /// Replaces the elements of a buffer on a GPU by those of a contiguous tensor there, of the same
    /// type and number. What was started on the tensor comes first.
    ///
    /// # Errors
    /// A tensor of another kind or place; a buffer on the host, whose slice can be filled.
    pub fn copy_from_tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let (element, len) = (self.element, self.len);
        match &mut self.storage {
            Storage::Device(memory) => memory.copy_from_tensor(element, len, tensor),
            Storage::Heap(_) | Storage::Shared(_) => Err(on_host("copy_from_tensor")),
        }
    }

    /// Replaces the elements of a contiguous tensor on a GPU by those of a buffer there, of the same
    /// type and number. What is started on the tensor later comes after.
    ///
    /// # Errors
    /// A tensor of another kind or place; a buffer on the host, whose slice can be read.
    pub fn copy_to_tensor(&self, tensor: &Tensor) -> Result<()> {
        match &self.storage {
            Storage::Device(memory) => memory.copy_to_tensor(self.element, self.len, tensor),
            Storage::Heap(_) | Storage::Shared(_) => Err(on_host("copy_to_tensor")),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::ElementType`] where `T` is not their type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, to be changed.
    ///
    /// # Errors
    /// [`Error::ElementType`] where `T` is not their type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// [`Error::ElementType`] where `T` is not their type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice()?.to_vec())
    }

    /// How many bytes the elements have, wherever they lie.
    pub(crate) fn byte_len(&self) -> usize {
        self.len * self.element.size()
    }

    /// The elements' bytes, in this machine's order; none of a buffer on a device, which only a
    /// backend gets to see that asks first.
    pub(crate) fn bytes(&self) -> &[u8] {
        let count = self.len * self.element.size();
        match &self.storage {
            Storage::Heap(words) => &bytemuck::cast_slice(words)[..count],
            Storage::Shared(memory) => &memory.bytes()[..count],
            Storage::Device(_) => &[],
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let count = self.len * self.element.size();
        match &mut self.storage {
            Storage::Heap(words) => &mut bytemuck::cast_slice_mut(words)[..count],
            Storage::Shared(memory) => &mut memory.bytes_mut()[..count],
            Storage::Device(_) => &mut [],
        }
    }

    /// The backend's own memory, if this buffer is in memory of type `M`.
    pub(crate) fn shared_memory<M: SharedMemory + 'static>(&mut self) -> Option<&mut M> {
        match &mut self.storage {
            Storage::Heap(_) | Storage::Device(_) => None,
            Storage::Shared(memory) => memory.as_any_mut().downcast_mut(),
        }
    }

    /// A backend's own memory, if this buffer is in a device's memory of type `M`.
    pub fn device_memory<M: DeviceMemory + 'static>(&mut self) -> Option<&mut M> {
        match &mut self.storage {
            Storage::Device(memory) => memory.as_any_mut().downcast_mut(),
            Storage::Heap(_) | Storage::Shared(_) => None,
        }
    }

    /// Refuses a buffer that this processor cannot read.
    pub(crate) fn check_on_host(&self) -> Result<()> {
        if self.is_on_device() { Err(Error::OnDevice) } else { Ok(()) }
    }

    fn check<T: Element>(&self) -> Result<()> {
        if self.element == T::TYPE {
            return self.check_on_host();
        }
        Err(Error::ElementType { expected: self.element, got: T::TYPE })
    }
}

fn on_host(what: &str) -> Error {
    let what = format!("{what} of a buffer on the host, whose elements `as_slice` gives,");
    Error::Unsupported { what }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} × {})", self.len, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gives_back_what_was_put_in() -> Result<()> {
        let mut buffer = Buffer::from_slice(&[1.5_f32, -2.0, 3.0]);
        buffer.as_mut_slice::<f32>()?[1] = 7.0;
        assert_eq!(buffer.to_vec::<f32>()?, [1.5, 7.0, 3.0]);
        assert_eq!(buffer.bytes().len(), 12);
        assert!(Buffer::from_slice::<u8>(&[]).is_empty());
        Ok(())
    }

    /// A device that is the heap.
    struct Pretended(Vec<u8>);

    impl DeviceMemory for Pretended {
        fn read(&self, to: &mut [u8]) -> Result<()> {
            to.copy_from_slice(&self.0[..to.len()]);
            Ok(())
        }

        fn write(&mut self, from: &[u8]) -> Result<()> {
            self.0[..from.len()].copy_from_slice(from);
            Ok(())
        }

        fn copy_from_tensor(&mut self, _: ElementType, _: usize, _: &Tensor) -> Result<()> {
            Err(on_host("copy_from_tensor"))
        }

        fn copy_to_tensor(&self, _: ElementType, _: usize, _: &Tensor) -> Result<()> {
            Err(on_host("copy_to_tensor"))
        }

        fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
            self
        }
    }

    #[test]
    fn a_buffer_on_a_device_is_copied_not_looked_at() -> Result<()> {
        let mut buffer = Buffer::on_device(ElementType::I32, 2, Box::new(Pretended(vec![0; 8])));
        let message = buffer.as_slice::<i32>().unwrap_err().to_string();
        assert!(message.contains("to_host"), "{message}");
        assert!(buffer.as_mut_slice::<i32>().is_err() && buffer.is_on_device());
        buffer.copy_from_host(&Buffer::from_slice(&[5_i32, -6]))?;
        assert_eq!(buffer.to_host()?.to_vec::<i32>()?, [5, -6]);
        assert!(buffer.copy_from_host(&Buffer::from_slice(&[5_i32])).is_err());
        assert!(buffer.copy_from_host(&Buffer::from_slice(&[5_f32, 6.0])).is_err());
        assert!(buffer.device_memory::<Pretended>().is_some());
        let single = crate::World::single();
        let sum = crate::Collective::AllReduce(crate::ReduceOp::Sum);
        assert!(single.comm().run(sum, buffer)?.is_on_device(), "nobody has to look at it");
        Ok(())
    }

    #[test]
    fn without_a_gpu_a_buffer_on_the_cpu_is_on_the_heap() -> Result<()> {
        let mut buffer = Buffer::zeros_on(&Device::Cpu, ElementType::F32, 3)?;
        assert_eq!(buffer.to_vec::<f32>()?, [0.0; 3]);
        let tensor = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu)?;
        let message = buffer.copy_from_tensor(&tensor).unwrap_err().to_string();
        assert!(message.contains("as_slice"), "{message}");
        assert!(buffer.copy_to_tensor(&tensor).is_err());
        Ok(())
    }

    #[test]
    fn the_wrong_type_is_refused() {
        let error = Buffer::from_slice(&[1_i32]).as_slice::<f32>().unwrap_err();
        assert!(error.to_string().contains("i32") && error.to_string().contains("f32"));
    }
}
