//! A GPU as the place where operations run: memory, kernels and matrix products.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::cuda::{CudaStorageSlice, gemm_reduced_precision_f32};
use candle_core::{CudaDevice, CudaStorage, Device};
use cudarc::cublas::{result as cublas, sys};
use cudarc::driver::CudaStream;

use super::compiler::{KernelSource, write_constant};
use super::launch::{KernelArg, LaunchGrid, launch};
use super::memory::{CudaMemory, allocate_unset};
use super::region::bind;
use super::{CudaNumbers, CudaNumbersMut, Kernels, Scratch, library_error, recent};
use crate::{ElementType, Error, Result};

/// A device of candle that is a GPU. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Gpu(CudaDevice);

/// A matrix whose rows lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct CudaMatrix<'a> {
    /// The numbers.
    pub values: CudaNumbers<'a>,
    /// The rows and columns in memory.
    pub size: (usize, usize),
    /// Whether the product takes the transposed matrix.
    pub transposed: bool,
}

impl CudaMatrix<'_> {
    /// The rows and columns of the factor.
    pub(super) fn factor(&self) -> (usize, usize) {
        let (rows, columns) = self.size;
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }
}

impl Gpu {
    /// The device, if it is a GPU.
    pub fn from_device(device: &Device) -> Option<Self> {
        device.as_cuda_device().ok().cloned().map(Self)
    }

    /// The device.
    pub fn device(&self) -> Device {
        Device::Cuda(self.0.clone())
    }

    /// The stream of candle's work on the device.
    pub(super) fn stream(&self) -> Arc<CudaStream> {
        self.0.cuda_stream()
    }

    /// Memory with unspecified contents.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<CudaMemory> {
        allocate_unset(&self.0.cuda_stream(), bytes).map(CudaMemory)
    }

    /// Scratch memory of `len` f32 numbers, or half as many f64, with unspecified contents.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn scratch(&self, len: usize) -> Result<Scratch> {
        Scratch::new(&self.stream(), len)
    }

    /// The memory as a storage of candle of `len` numbers, which are f32, f16 or bf16.
    pub(crate) fn storage_of(
        &self,
        memory: CudaMemory,
        element: ElementType,
        len: usize,
    ) -> CudaStorage {
        let slice = match element {
            ElementType::F16 => CudaStorageSlice::F16(memory.into_slice(len)),
            ElementType::Bf16 => CudaStorageSlice::BF16(memory.into_slice(len)),
            _ => CudaStorageSlice::F32(memory.into_slice(len)),
        };
        CudaStorage { slice, device: self.0.clone() }
    }

    /// Enqueues a kernel, whose `number_t` is `float`.
    ///
    /// # Errors
    /// A text that does not compile, and the driver's errors.
    pub fn launch(
        &self,
        kernels: Kernels,
        kernel: &'static str,
        grid: LaunchGrid,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        self.launch_for(ElementType::F32, kernels, kernel, grid, args)
    }

    /// Enqueues a kernel, whose `number_t` is `number`: f32, f16 or bf16.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
    pub fn launch_for(
        &self,
        number: ElementType,
        kernels: Kernels,
        kernel: &'static str,
        grid: LaunchGrid,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        let source = KernelSource { name: kernels.name, number, text: [kernels.text, ""] };
        launch(&self.0.cuda_stream(), source, kernel, grid, args)
    }

    /// Enqueues a copy of `numbers` to constant `name` of `kernels`: `extern "C" { __constant__ float
    /// NAME[LENGTH]; }`. Kernels that are launched later read them. The device has one such constant
    /// for the whole program.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch), a missing constant, and one that is too small.
    pub fn write_constant(
        &self,
        kernels: Kernels,
        name: &'static str,
        numbers: &[f32],
    ) -> Result<()> {
        let number = ElementType::F32;
        let source = KernelSource { name: kernels.name, number, text: [kernels.text, ""] };
        write_constant(&self.0.cuda_stream(), source, name, numbers)
    }

    /// Enqueues `out = a b`, or `out += a b` with `add`, by cuBLAS. The rows of `out` lie one after
    /// the other. The factors have one type, and `out` has that type or f32. Sums are computed in f32.
    /// Factors in f32 are rounded to TF32 if candle's own products are
    /// (`candle_core::cuda::set_gemm_reduced_precision_f32`).
    ///
    /// # Errors
    /// cuBLAS's error.
    ///
    /// # Panics
    /// If the sizes or the types do not fit together.
    pub fn matmul(
        &self,
        mut out: CudaNumbersMut<'_>,
        add: bool,
        a: CudaMatrix<'_>,
        b: CudaMatrix<'_>,
    ) -> Result<()> {
        let ((m, k), (inner, n)) = (a.factor(), b.factor());
        assert_eq!(k, inner, "inner sizes of a matrix product");
        assert_eq!((out.len(), a.values.len(), b.values.len()), (m * n, m * k, k * n));
        let (element, result) = (a.values.element_type(), out.element_type());
        assert!(element == b.values.element_type(), "the types of the factors");
        assert!(result == element || result == ElementType::F32, "a product in {result}");
        if out.is_empty() {
            return Ok(());
        }
        if k == 0 {
            return if add { Ok(()) } else { out.clear() };
        }
        let int = |number: usize| {
            let what = || format!("a matrix with a side of {number} on a GPU");
            i32::try_from(number).map_err(|_| Error::Unsupported { what: what() })
        };
        let turn = |transposed| {
            if transposed {
                sys::cublasOperation_t::CUBLAS_OP_T
            } else {
                sys::cublasOperation_t::CUBLAS_OP_N
            }
        };
        let (one, beta) = (1.0_f32, if add { 1.0_f32 } else { 0.0 });
        let (rows, columns, inner) = (int(m)?, int(n)?, int(k)?);
        let (a_stride, b_stride) = (int(a.size.1)?, int(b.size.1)?);
        let out = out.region();
        bind(out.stream())?;
        let blas = self.0.cublas_handle();
        // cuBLAS has columns one after the other, so to it each matrix here is the transposed one:
        // it computes out^T = b^T a^T.
        let compute = match element == ElementType::F32 && gemm_reduced_precision_f32() {
            true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let float = cuda_type(element);
        recent::note("cublasGemmEx", None);
        // SAFETY: invariants (borrow) and (one stream) of `cuda`: the handle works on the stream of
        // the device. The lengths of the matrices were compared with their sizes above.
        let done = unsafe {
            cublas::gemm_ex(
                *blas.handle(),
                turn(b.transposed),
                turn(a.transposed),
                columns,
                rows,
                inner,
                (&raw const one).cast(),
                b.values.region().at() as *const c_void,
                float,
                b_stride,
                a.values.region().at() as *const c_void,
                float,
                a_stride,
                (&raw const beta).cast(),
                out.at() as *mut c_void,
                cuda_type(result),
                columns,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        done.map_err(library_error("cublasGemmEx"))
    }
}

fn cuda_type(element: ElementType) -> sys::cudaDataType {
    match element {
        ElementType::F16 => sys::cudaDataType::CUDA_R_16F,
        ElementType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}
