//! Matrix products on a GPU with a bias, by one call of cuBLASLt.
//!
//! cuBLASLt could also apply ReLU and GELU. NVIDIA does not document what its ReLU makes of a NaN and how exact its
//! GELU is, and in f32 and bf16 it computes them by a second kernel (karpathy/llm.c#338). So a kernel of ours does.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::cuda::gemm_reduced_precision_f32;
use cudarc::driver::CudaContext;

use super::blas_lt::{CublasLtHandle, MatmulPlan, MatmulShape, Places};
use super::region::{Region, bind};
use super::workspace::{WorkspaceMemory, workspace};
use super::{CudaMatrix, CudaNumbers, CudaNumbersMut, Gpu};
use crate::{ElementType, Result};

/// The most plans that a device keeps. A plan is about 1 kB, and a model has one per layer and batch
/// size.
const MOST_PLANS: usize = 4096;

/// The bytes of the widest loads. Algorithms are chosen for addresses that are multiples of it, or of
/// less where an address is not. A wider choice would give the same product other bits at another
/// address.
const WIDEST: u64 = 16;

/// cuBLASLt on a device.
struct CublasLtSession {
    /// `None` if there is no library.
    handle: Option<CublasLtHandle>,
    /// `None` if there is no algorithm for a shape.
    plans: HashMap<MatmulShape, Option<MatmulPlan>>,
    /// The handle needs it.
    _context: Arc<CudaContext>,
}

impl CublasLtSession {
    /// The session of the current context of this thread.
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let handle = CublasLtHandle::new()?;
        if handle.is_none() {
            tracing::warn!(
                "libcublasLt.so.13 was not found: layers add their biases by kernels of their own"
            );
        }
        Ok(Self { handle, plans: HashMap::new(), _context: Arc::clone(context) })
    }
}

/// By the number of the device.
static SESSIONS: OnceLock<Mutex<HashMap<usize, CublasLtSession>>> = OnceLock::new();

impl Gpu {
    /// Enqueues `out = a b + bias` by one call of cuBLASLt, where the bias has a number for each column. All
    /// numbers have one type, and sums are computed in f32. Returns false if cuBLASLt is missing or cannot
    /// compute this product. Then nothing is enqueued, and [`Gpu::matmul`] computes the product. All calls with
    /// the same sizes, and with addresses that are multiples of 16 bytes, give the same bits. The factors are
    /// rounded to TF32 as in [`Gpu::matmul`].
    ///
    /// # Errors
    /// cuBLASLt's error, and too little memory on the device.
    ///
    /// # Panics
    /// If the sizes or the types do not fit together.
    pub fn affine(
        &self,
        mut out: CudaNumbersMut<'_>,
        a: CudaMatrix<'_>,
        b: CudaMatrix<'_>,
        bias: CudaNumbers<'_>,
    ) -> Result<bool> {
        let ((rows, inner), (b_inner, columns)) = (a.factor(), b.factor());
        assert_eq!(inner, b_inner, "inner sizes of a matrix product");
        let lengths = (out.len(), a.values.len(), b.values.len());
        assert_eq!(lengths, (rows * columns, rows * inner, inner * columns));
        assert_eq!(bias.len(), columns, "the length of a bias");
        let mut types = [a.values, b.values, bias].into_iter();
        assert!(types.all(|numbers| numbers.element_type() == out.element_type()), "one type");
        let element = out.element_type();
        let out = out.region();
        if out.bytes() == 0 {
            return Ok(true);
        }
        if inner == 0 {
            return Ok(false);
        }
        let [a_region, b_region, bias] = [a.values, b.values, bias].map(CudaNumbers::region);
        let places = Places { a: a_region, b: b_region, bias, out };
        let shape = MatmulShape {
            element,
            a: (a.size, a.transposed),
            b: (b.size, b.transposed),
            out: (rows, columns),
            bias: alignment(bias),
            tf32: element == ElementType::F32 && gemm_reduced_precision_f32(),
            alignment: [places.a, places.b, out].map(alignment),
        };
        self.enqueue(shape, places)
    }

    fn enqueue(&self, shape: MatmulShape, places: Places<'_>) -> Result<bool> {
        let stream = self.stream();
        bind(&stream)?;
        let context = stream.context();
        let sessions = SESSIONS.get_or_init(Mutex::default);
        let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = match sessions.entry(context.ordinal()) {
            Entry::Occupied(session) => session.into_mut(),
            Entry::Vacant(place) => place.insert(CublasLtSession::new(context)?),
        };
        let Some(handle) = &session.handle else { return Ok(false) };
        if session.plans.len() >= MOST_PLANS {
            session.plans.clear();
        }
        let plan = match session.plans.entry(shape) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(planned(handle, &shape)),
        };
        let Some(known) = plan else { return Ok(false) };
        let workspace = workspace(&stream, known.workspace())?;
        let workspace = workspace.as_deref().map(WorkspaceMemory::region);
        let done = known.enqueue(handle, places, workspace, stream.cu_stream())?;
        if !done {
            *plan = None;
        }
        Ok(done)
    }
}

/// The plan of a shape, if cuBLASLt has one. Any error of planning means that it has none, because
/// another product and a kernel compute the same.
fn planned(handle: &CublasLtHandle, shape: &MatmulShape) -> Option<MatmulPlan> {
    MatmulPlan::new(handle, shape).unwrap_or_else(|error| {
        tracing::warn!("cuBLASLt does not compute {shape:?}: {error}");
        None
    })
}

/// The alignment of a region in bytes: the largest power of 2, up to [`WIDEST`], that divides the address.
fn alignment(region: Region<'_>) -> u64 {
    1 << (region.at() | WIDEST).trailing_zeros()
}
