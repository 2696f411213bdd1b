//! Matrix products on a GPU that end with a bias and an activation, by one call of cuBLASLt.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::cuda::gemm_reduced_precision_f32;
use cudarc::driver::CudaContext;

use super::blas_lt::{Function, Handle, INPUT_ALIGNMENT, Places, Plan, Shape};
use super::memory::allocate_unset;
use super::region::{Region, bind};
use super::{CudaNumbers, CudaNumbersMut, Gpu, Matrix};
use crate::{ElementType, Result};

/// The most plans that a device keeps. A plan is about 1 kB, and a model has one per layer and batch
/// size.
const MOST_PLANS: usize = 4096;

/// The bytes of the widest loads. Algorithms are chosen for addresses that are multiples of it, or of
/// less where an address is not. A wider choice would give the same product other bits at another
/// address.
const WIDEST: u64 = 16;

/// The stride of the copy of GELU's input is a multiple of so many numbers.
const COPY_STRIDE: usize = 8;

/// A function that is applied to the numbers of a product, after the bias.
#[derive(Debug)]
pub enum Epilogue<'a> {
    /// None.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// The approximation of GELU by tanh. The span gets GELU's input.
    GeluTanh(CudaNumbersMut<'a>),
}

/// cuBLASLt on a device.
struct Session {
    /// `None` if there is no library.
    handle: Option<Handle>,
    /// `None` if there is no algorithm for a shape.
    plans: HashMap<Shape, Option<Plan>>,
    /// The handle needs it.
    _context: Arc<CudaContext>,
}

impl Session {
    /// The session of the current context of this thread.
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let handle = Handle::new()?;
        if handle.is_none() {
            tracing::warn!(
                "libcublasLt.so.13 was not found: layers add their biases by kernels of their own"
            );
        }
        Ok(Self { handle, plans: HashMap::new(), _context: Arc::clone(context) })
    }
}

/// By the number of the device.
static SESSIONS: OnceLock<Mutex<HashMap<usize, Session>>> = OnceLock::new();

impl Gpu {
    /// Enqueues `out = f(a b + bias)` by one call of cuBLASLt, where `f` is the epilogue and the bias
    /// has a number for each column. All numbers have one type, and sums are computed in f32. Returns
    /// false if cuBLASLt is missing or cannot compute this product. Then nothing is enqueued, and
    /// [`Gpu::matmul`] computes the product. All calls with the same sizes, and with addresses that are
    /// multiples of 16 bytes, give the same bits. The factors are rounded to TF32 as in
    /// [`Gpu::matmul`].
    ///
    /// # Errors
    /// cuBLASLt's error, and too little memory on the device.
    ///
    /// # Panics
    /// If the sizes or the types do not fit together.
    pub fn matmul_then(
        &self,
        mut out: CudaNumbersMut<'_>,
        a: Matrix<'_>,
        b: Matrix<'_>,
        bias: Option<CudaNumbers<'_>>,
        mut epilogue: Epilogue<'_>,
    ) -> Result<bool> {
        let ((rows, inner), (b_inner, columns)) = (a.factor(), b.factor());
        assert_eq!(inner, b_inner, "inner sizes of a matrix product");
        let lengths = (out.len(), a.values.len(), b.values.len());
        assert_eq!(lengths, (rows * columns, rows * inner, inner * columns));
        assert_eq!(bias.map_or(columns, |bias| bias.len()), columns, "the length of a bias");
        let mut types = [Some(a.values), Some(b.values), bias].into_iter().flatten();
        assert!(types.all(|numbers| numbers.element_type() == out.element_type()), "one type");
        let (function, input) = match &mut epilogue {
            Epilogue::Identity => (Function::Identity, None),
            Epilogue::Relu => (Function::Relu, None),
            Epilogue::GeluTanh(input) => (Function::GeluTanh, Some(input.region())),
        };
        let element = out.element_type();
        let out = out.region();
        let whole = input.is_none_or(|input| input.bytes() == out.bytes());
        assert!(whole, "the length of the copy of an input");
        if out.bytes() == 0 {
            return Ok(true);
        }
        if inner == 0 || (input.is_some() && !columns.is_multiple_of(COPY_STRIDE)) {
            return Ok(false);
        }
        if input.is_some_and(|input| !input.at().is_multiple_of(INPUT_ALIGNMENT)) {
            return Ok(false);
        }
        let bias = bias.map(CudaNumbers::region);
        let places = Places { a: a.values.region(), b: b.values.region(), bias, out, input };
        let shape = Shape {
            element,
            a: (a.size, a.transposed),
            b: (b.size, b.transposed),
            out: (rows, columns),
            bias: bias.map(alignment),
            function,
            tf32: element == ElementType::F32 && gemm_reduced_precision_f32(),
            alignment: [places.a, places.b, out].map(alignment),
        };
        self.enqueue(shape, places)
    }

    fn enqueue(&self, shape: Shape, places: Places<'_>) -> Result<bool> {
        let stream = self.stream();
        bind(&stream)?;
        let context = stream.context();
        let sessions = SESSIONS.get_or_init(Mutex::default);
        let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = match sessions.entry(context.ordinal()) {
            Entry::Occupied(session) => session.into_mut(),
            Entry::Vacant(place) => place.insert(Session::new(context)?),
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
        // Freed in the order of the stream, after the product.
        let workspace = match known.workspace() {
            0 => None,
            bytes => Some(allocate_unset(&stream, bytes)?),
        };
        let workspace = workspace.as_ref().map(Region::of);
        let done = known.enqueue(handle, places, workspace, stream.cu_stream())?;
        if !done {
            *plan = None;
        }
        Ok(done)
    }
}

/// The plan of a shape, if cuBLASLt has one. Any error of planning means that it has none, because
/// another product and a kernel compute the same.
fn planned(handle: &Handle, shape: &Shape) -> Option<Plan> {
    Plan::new(handle, shape).unwrap_or_else(|error| {
        tracing::warn!("cuBLASLt does not compute {shape:?}: {error}");
        None
    })
}

/// The largest power of 2, up to [`WIDEST`], of which the address is a multiple.
fn alignment(region: Region<'_>) -> u64 {
    1 << (region.at() | WIDEST).trailing_zeros()
}
