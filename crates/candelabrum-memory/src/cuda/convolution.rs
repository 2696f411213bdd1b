//! Convolutions on a GPU by cuDNN: the result, and the gradients of input and weight.
//!
//! cuDNN has a handle for each stream. The program keeps the handles. If a stream is gone, its handle
//! is used for the next new stream of the device. It is never destroyed, because that waits for the
//! whole device, and another rank's kernel there may wait for this rank.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use candle_core::cuda::gemm_reduced_precision_f32;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use super::cudnn::{ConvolutionPlan, CudnnHandle, CudnnPrecision, CudnnProduct};
use super::memory::allocate_unset;
use super::region::{Region, bind};
use super::workspace::{WorkspaceMemory, workspace};
use super::{CudaNumbers, CudaNumbersMut, Gpu};
use crate::{Convolution, ElementType, Error, Result};

/// The most plans that a handle keeps. A plan is about 1 kB, and a model has three per layer and batch
/// size.
const MOST_PLANS: usize = 4096;

/// The addresses that cuDNN gets are multiples of so many bytes. Its functions cannot be told that an address is less
/// aligned, and may choose kernels that load 16 bytes at a time.
const ALIGNMENT: u64 = 16;

/// cuDNN on a stream.
struct CudnnSession {
    handle: CudnnHandle,
    plans: HashMap<(Convolution, CudnnProduct, CudnnPrecision), ConvolutionPlan>,
}

/// A session and its stream. The context lives as long as the handle.
struct StreamSession {
    stream: Weak<CudaStream>,
    context: Arc<CudaContext>,
    session: Arc<Mutex<CudnnSession>>,
}

static SESSIONS: OnceLock<Mutex<Vec<StreamSession>>> = OnceLock::new();

/// The session of the stream, whose context is the current one of this thread.
fn session(stream: &Arc<CudaStream>) -> Result<Arc<Mutex<CudnnSession>>> {
    let sessions = SESSIONS.get_or_init(Mutex::default);
    let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
    // The address of a stream that is gone is not used again while a `Weak` of it lives.
    let known = sessions.iter().find(|entry| entry.stream.as_ptr() == Arc::as_ptr(stream));
    if let Some(known) = known {
        return Ok(Arc::clone(&known.session));
    }
    let context = stream.context();
    let is_free = |entry: &&mut StreamSession| {
        entry.stream.strong_count() == 0 && entry.context.ordinal() == context.ordinal()
    };
    if let Some(free) = sessions.iter_mut().find(is_free) {
        let session = Arc::clone(&free.session);
        session.lock().unwrap_or_else(PoisonError::into_inner).handle.set_stream(stream)?;
        free.stream = Arc::downgrade(stream);
        return Ok(session);
    }
    let session = CudnnSession { handle: CudnnHandle::new(stream)?, plans: HashMap::new() };
    let session = Arc::new(Mutex::new(session));
    sessions.push(StreamSession {
        stream: Arc::downgrade(stream),
        context: Arc::clone(context),
        session: Arc::clone(&session),
    });
    Ok(session)
}

impl Gpu {
    /// Enqueues `ys = xs * weight`, the convolution without bias. All algorithms give the same bits in
    /// every run. All three have one type, and sums are computed in f32. Numbers in f32 are rounded to
    /// TF32 only where candle's products are (`candle_core::cuda::set_gemm_reduced_precision_f32`).
    ///
    /// # Errors
    /// cuDNN's error. The first convolution finds that libcudnn.so.9 is missing.
    ///
    /// # Panics
    /// If a length is not that of `sizes`, or the types differ.
    pub fn convolve(
        &self,
        sizes: &Convolution,
        ys: CudaNumbersMut<'_>,
        xs: CudaNumbers<'_>,
        weight: CudaNumbers<'_>,
    ) -> Result<()> {
        self.product(sizes, CudnnProduct::Forward, [xs, weight, ys.into()])
    }

    /// Enqueues the gradient of the input of [`Gpu::convolve`].
    ///
    /// # Errors
    /// As [`Gpu::convolve`].
    ///
    /// # Panics
    /// If a length is not that of `sizes`, or the types differ.
    pub fn convolve_back_to_input(
        &self,
        sizes: &Convolution,
        dxs: CudaNumbersMut<'_>,
        weight: CudaNumbers<'_>,
        dys: CudaNumbers<'_>,
    ) -> Result<()> {
        self.product(sizes, CudnnProduct::ToInput, [dxs.into(), weight, dys])
    }

    /// Enqueues the gradient of the weight of [`Gpu::convolve`].
    ///
    /// # Errors
    /// As [`Gpu::convolve`].
    ///
    /// # Panics
    /// If a length is not that of `sizes`, or the types differ.
    pub fn convolve_back_to_weight(
        &self,
        sizes: &Convolution,
        mut dweight: CudaNumbersMut<'_>,
        xs: CudaNumbers<'_>,
        dys: CudaNumbers<'_>,
    ) -> Result<()> {
        if sizes.batch == 0 {
            return dweight.clear();
        }
        self.product(sizes, CudnnProduct::ToWeight, [xs, dweight.into(), dys])
    }

    /// Enqueues a product. The numbers are those of input, weight and result, of which the caller has
    /// borrowed one mutably.
    fn product(
        &self,
        sizes: &Convolution,
        product: CudnnProduct,
        numbers: [CudaNumbers<'_>; 3],
    ) -> Result<()> {
        let lengths = [sizes.input_len(), sizes.weight_len(), sizes.output_len()];
        let given = numbers.map(|numbers| numbers.len());
        assert_eq!(given, lengths, "the lengths of input, weight and result of a convolution");
        let element = numbers[0].element_type();
        assert!(numbers.iter().all(|numbers| numbers.element_type() == element), "{numbers:?}");
        if lengths.contains(&0) {
            return Ok(()); // the batch is empty
        }
        if !sizes.is_small_enough() {
            return Err(Error::Unsupported { what: format!("{sizes:?} by cuDNN") });
        }
        let stream = self.stream();
        bind(&stream)?;
        let session = session(&stream)?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        let CudnnSession { handle, plans } = &mut *session;
        if plans.len() >= MOST_PLANS {
            plans.clear();
        }
        let precision = match element {
            ElementType::F32 if gemm_reduced_precision_f32() => CudnnPrecision::Tf32,
            ElementType::F32 => CudnnPrecision::F32,
            ElementType::F16 => CudnnPrecision::F16,
            _ => CudnnPrecision::Bf16,
        };
        let plan = match plans.entry((*sizes, product, precision)) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => {
                place.insert(ConvolutionPlan::new(handle, sizes, product, precision)?)
            }
        };
        let workspace = workspace(&stream, plan.workspace())?;
        let workspace = workspace.as_deref().map(WorkspaceMemory::region);
        let regions = numbers.map(CudaNumbers::region);
        let copies = [aligned(regions[0])?, aligned(regions[1])?, aligned(regions[2])?];
        let places: [Region<'_>; 3] = std::array::from_fn(|number| {
            copies[number].as_ref().map_or(regions[number], Region::new)
        });
        let result = match product {
            CudnnProduct::Forward => 2,
            CudnnProduct::ToInput => 0,
            CudnnProduct::ToWeight => 1,
        };
        for number in (0..3).filter(|&number| number != result && copies[number].is_some()) {
            places[number].copy_from(regions[number])?;
        }
        plan.enqueue(handle, places, workspace)?;
        if copies[result].is_some() { regions[result].copy_from(places[result]) } else { Ok(()) }
    }
}

/// Memory in place of a region that begins between two multiples of [`ALIGNMENT`].
fn aligned(region: Region<'_>) -> Result<Option<CudaSlice<u8>>> {
    if region.at().is_multiple_of(ALIGNMENT) {
        return Ok(None);
    }
    allocate_unset(region.stream(), region.bytes()).map(Some)
}
