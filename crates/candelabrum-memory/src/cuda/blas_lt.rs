//! cuBLASLt: a handle, and plans of matrix products with a bias.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;

use super::descriptor::Descriptor;
use super::region::Region;
use super::workspace::PRODUCT_BYTES;
use super::{library_error, recent};
use crate::{ElementType, Result};

/// The oldest cuBLASLt whose functions have the declarations of this build.
const OLDEST: usize = 120_000;

/// The type of the matrices and the biases.
fn cuda_type(element: ElementType) -> sys::cudaDataType {
    match element {
        ElementType::F16 => sys::cudaDataType::CUDA_R_16F,
        ElementType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

/// cuBLASLt on one device. It lives as long as the program.
pub(super) struct CublasLtHandle(sys::cublasLtHandle_t);

// SAFETY: a handle may move between threads, and cuBLASLt lets several threads use it at a time.
unsafe impl Send for CublasLtHandle {}

impl CublasLtHandle {
    /// A handle for the device of this thread's current context; `None` if there is no library, or an
    /// old one.
    pub(super) fn new() -> Result<Option<Self>> {
        // SAFETY: the function has no conditions. The trampolines of scripts/cuda/gen_lazy.py give an
        // error code if there is no library, which is a number below any version.
        let version = unsafe { sys::cublasLtGetVersion() };
        if version < OLDEST {
            return Ok(None);
        }
        let handle = result::create_handle().map_err(library_error("cublasLtCreate"))?;
        Ok(Some(Self(handle)))
    }
}

/// An object of cuBLASLt.
type CublasLtDescriptor<T> = Descriptor<T, CublasError>;

/// A product as cuBLASLt sees it. Its columns lie one after the other, so to it each matrix is the
/// transposed one, and it computes `out^T = b^T a^T`. A bias of the columns of `out` is one of the
/// rows there, which is how cuBLASLt adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatmulShape {
    /// The type of all numbers. Sums are computed in f32.
    pub(super) element: ElementType,
    /// The rows and columns in memory, and whether the product takes the transposed matrix.
    pub(super) a: ((usize, usize), bool),
    pub(super) b: ((usize, usize), bool),
    pub(super) out: (usize, usize),
    /// The alignment of the bias, in bytes.
    pub(super) bias: u64,
    /// Whether numbers may be rounded to TF32.
    pub(super) tf32: bool,
    /// The alignments of a, b and the result, in bytes.
    pub(super) alignment: [u64; 3],
}

/// The memory of a product.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) a: Region<'a>,
    pub(super) b: Region<'a>,
    pub(super) bias: Region<'a>,
    /// The caller has borrowed it mutably.
    pub(super) out: Region<'a>,
}

/// A product, ready to be computed.
pub(super) struct MatmulPlan {
    product: CublasLtDescriptor<sys::cublasLtMatmulDesc_t>,
    /// Of b, a and the result.
    layouts: [CublasLtDescriptor<sys::cublasLtMatrixLayout_t>; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

// SAFETY: descriptors may move between threads. One thread at a time uses them, because `enqueue`
// borrows the plan mutably.
unsafe impl Send for MatmulPlan {}

/// Whether the code says that cuBLASLt has no algorithm.
fn is_unsupported(error: CublasError) -> bool {
    error.0 == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
}

impl MatmulPlan {
    /// `None` if cuBLASLt has no algorithm for such a product.
    ///
    /// # Errors
    /// cuBLASLt's.
    pub(super) fn new(handle: &CublasLtHandle, shape: &MatmulShape) -> Result<Option<Self>> {
        let layout = |size| layout(shape.element, size);
        let layouts = [layout(shape.b.0)?, layout(shape.a.0)?, layout(shape.out)?];
        let product = product(shape)?;
        // The heuristic only asks how this address is aligned. It reads nothing there.
        set_bias(&product, shape.bias)?;
        let preference = preference(shape.alignment)?;
        let [left, right, out] = layouts.each_ref().map(|layout| layout.0);
        // SAFETY: the handle and the descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                handle.0,
                product.0,
                left,
                right,
                out,
                out,
                preference.0,
            )
        };
        match found {
            Err(error) if is_unsupported(error) => Ok(None),
            Err(error) => Err(library_error("cublasLtMatmulAlgoGetHeuristic")(error)),
            Ok(found) => {
                let (algorithm, workspace) = (found.algo, found.workspaceSize);
                Ok(Some(Self { product, layouts, algorithm, workspace }))
            }
        }
    }

    /// The bytes that the algorithm uses beside the matrices.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    /// Enqueues the product on `stream`. False if cuBLASLt refuses it because it has no algorithm;
    /// then nothing is enqueued. The regions and the workspace have the lengths of the plan's shape,
    /// and are on the stream.
    pub(super) fn enqueue(
        &mut self,
        handle: &CublasLtHandle,
        places: Places<'_>,
        workspace: Option<Region<'_>>,
        stream: CUstream,
    ) -> Result<bool> {
        let bytes = workspace.map_or(0, Region::bytes);
        assert!(bytes >= self.workspace, "a workspace of {bytes} bytes");
        let workspace = workspace.map_or(ptr::null_mut(), |region| region.at() as *mut c_void);
        set_bias(&self.product, places.bias.at())?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let [left, right, out] = self.layouts.each_ref().map(|layout| layout.0);
        let result = places.out.at() as *mut c_void;
        recent::note("cublasLtMatmul", None);
        // SAFETY: invariants (borrow) and (one stream) of `cuda`. The lengths of the regions were
        // compared with the shape in `Gpu::affine`. The handle and the descriptors are alive.
        let done = unsafe {
            result::matmul(
                handle.0,
                self.product.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                places.b.at() as *const c_void,
                left,
                places.a.at() as *const c_void,
                right,
                result,
                out,
                result,
                out,
                &raw const self.algorithm,
                workspace,
                bytes,
                stream.cast(),
            )
        };
        match done {
            Err(error) if is_unsupported(error) => Ok(false),
            done => done.map(|()| true).map_err(library_error("cublasLtMatmul")),
        }
    }
}

/// A matrix whose rows, of this number and length, lie one after the other.
fn layout(
    element: ElementType,
    (rows, columns): (usize, usize),
) -> Result<CublasLtDescriptor<sys::cublasLtMatrixLayout_t>> {
    let (height, width, stride) = (columns as u64, rows as u64, columns as i64);
    let made = result::create_matrix_layout(cuda_type(element), height, width, stride);
    let made = made.map_err(library_error("cublasLtMatrixLayoutCreate"))?;
    Ok(Descriptor(made, result::destroy_matrix_layout))
}

fn product(shape: &MatmulShape) -> Result<CublasLtDescriptor<sys::cublasLtMatmulDesc_t>> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let compute = match shape.tf32 {
        true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    let made = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F);
    let made = made.map_err(library_error("cublasLtMatmulDescCreate"))?;
    let made = Descriptor(made, result::destroy_matmul_desc);
    let turn = |transposed| {
        if transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
    };
    set(&made, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &turn(shape.b.1))?;
    set(&made, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &turn(shape.a.1))?;
    let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
    set(&made, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
    Ok(made)
}

/// Sets the address of the bias.
fn set_bias(product: &CublasLtDescriptor<sys::cublasLtMatmulDesc_t>, bias: u64) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    set(product, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)
}

/// Sets an attribute whose type in cuBLASLt is `T`, or an enumeration or pointer of its size.
fn set<T>(
    product: &CublasLtDescriptor<sys::cublasLtMatmulDesc_t>,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<()> {
    let from = ptr::from_ref(value).cast();
    // SAFETY: the descriptor is alive, and cuBLASLt reads the bytes of `value` in the call.
    let set =
        unsafe { result::set_matmul_desc_attribute(product.0, attribute, from, size_of::<T>()) };
    set.map_err(library_error("cublasLtMatmulDescSetAttribute"))
}

/// Algorithms with at most [`PRODUCT_BYTES`] of workspace, for addresses that are multiples of these.
fn preference(alignment: [u64; 3]) -> Result<CublasLtDescriptor<sys::cublasLtMatmulPreference_t>> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let made = result::create_matmul_pref();
    let made = made.map_err(library_error("cublasLtMatmulPreferenceCreate"))?;
    let made = Descriptor(made, result::destroy_matmul_pref);
    let set = |attribute, value: u64, bytes| {
        let from = (&raw const value).cast();
        // SAFETY: the descriptor is alive. The first `bytes` bytes of `value`, at most 8, are the
        // number, because the machine is little-endian.
        let set = unsafe { result::set_matmul_pref_attribute(made.0, attribute, from, bytes) };
        set.map_err(library_error("cublasLtMatmulPreferenceSetAttribute"))
    };
    let most = PRODUCT_BYTES as u64;
    set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most, size_of::<u64>())?;
    let [a, b, out] = alignment;
    for (attribute, alignment) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
    ] {
        set(attribute, alignment, size_of::<u32>())?;
    }
    Ok(made)
}
