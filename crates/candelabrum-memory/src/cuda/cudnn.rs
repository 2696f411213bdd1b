//! cuDNN: a handle, and plans of convolutions.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::cudnn::result::{self, CudnnError};
use cudarc::cudnn::sys;
use cudarc::driver::CudaStream;

use super::descriptor::Descriptor;
use super::region::Region;
use super::{library_error, recent};
use crate::{Convolution, Error, Result};

/// The oldest cuDNN whose functions have the declarations of this build.
const OLDEST: usize = 90000;

/// The most memory that an algorithm may use beside the tensors.
const MOST_WORKSPACE: usize = 512 << 20;

/// The most algorithms that cuDNN proposes.
const MOST_ALGORITHMS: usize = 16;

/// cuDNN on one stream. It lives as long as the program.
pub(super) struct CudnnHandle(sys::cudnnHandle_t);

// SAFETY: a handle may move between threads. One thread at a time uses it, because every use borrows it
// mutably or borrows a plan that is locked together with it.
unsafe impl Send for CudnnHandle {}

impl CudnnHandle {
    /// A handle for the stream, whose context is the current one of this thread.
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let version = result::get_version();
        if version < OLDEST {
            // The trampolines of scripts/cuda/gen_lazy.py give an error code if there is no library.
            let message = "convolutions on a GPU need libcudnn.so.9, which was not found: install \
                           cuDNN 9 and add its folder to LD_LIBRARY_PATH";
            return Err(Error::Cuda { call: "cudnnCreate", message: message.to_owned() });
        }
        let created = result::create_handle().map_err(|error| Error::Cuda {
            call: "cudnnCreate",
            message: format!("{error}, from libcudnn.so.9 of version {version}"),
        });
        let mut handle = Self(created?);
        handle.set_stream(stream)?;
        Ok(handle)
    }

    pub(super) fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        // SAFETY: both are alive. The handle is not used after the stream is gone, except with
        // another one.
        let set = unsafe { result::set_stream(self.0, stream.cu_stream().cast()) };
        set.map_err(library_error("cudnnSetStream"))
    }
}

/// A descriptor of cuDNN.
type CudnnDescriptor<T> = Descriptor<T, CudnnError>;

/// What is computed from the other two of input, weight and result (or their gradients).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CudnnProduct {
    Forward,
    ToInput,
    ToWeight,
}

/// The type of the numbers, and whether products may be rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CudnnPrecision {
    F32,
    /// Numbers in f32, which are rounded to TF32.
    Tf32,
    F16,
    Bf16,
}

impl CudnnPrecision {
    fn data_type(self) -> sys::cudnnDataType_t {
        match self {
            Self::F32 | Self::Tf32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            Self::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
            Self::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        }
    }

    fn math_type(self) -> sys::cudnnMathType_t {
        match self {
            Self::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            Self::Tf32 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            Self::F16 | Self::Bf16 => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum CudnnAlgorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    ToInput(sys::cudnnConvolutionBwdDataAlgo_t),
    ToWeight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// A product of a convolution, ready to be computed.
pub(super) struct ConvolutionPlan {
    xs: CudnnDescriptor<sys::cudnnTensorDescriptor_t>,
    weight: CudnnDescriptor<sys::cudnnFilterDescriptor_t>,
    ys: CudnnDescriptor<sys::cudnnTensorDescriptor_t>,
    convolution: CudnnDescriptor<sys::cudnnConvolutionDescriptor_t>,
    algorithm: CudnnAlgorithm,
    workspace: usize,
}

// SAFETY: descriptors may move between threads. One thread at a time uses them, because a plan is
// locked together with its handle.
unsafe impl Send for ConvolutionPlan {}

impl ConvolutionPlan {
    /// # Errors
    /// cuDNN's, for instance if it cannot compute such a convolution.
    pub(super) fn new(
        handle: &mut CudnnHandle,
        sizes: &Convolution,
        product: CudnnProduct,
        precision: CudnnPrecision,
    ) -> Result<Self> {
        let Convolution { batch, in_channels, out_channels, groups, in_size, out_size, .. } =
            *sizes;
        let data = precision.data_type();
        let xs = tensor(data, [batch, in_channels, in_size.0, in_size.1])?;
        let ys = tensor(data, [batch, out_channels, out_size.0, out_size.1])?;
        let kernel = sizes.kernel;
        let weight = filter(data, [out_channels, in_channels / groups, kernel.0, kernel.1])?;
        let convolution = convolution(sizes, precision.math_type())?;
        let algorithm = CudnnAlgorithm::Forward(
            sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        );
        let mut plan = Self { xs, weight, ys, convolution, algorithm, workspace: 0 };
        let candidates = match product {
            CudnnProduct::Forward => plan.forward_algorithms(handle, precision)?,
            CudnnProduct::ToInput => plan.to_input_algorithms(handle, precision)?,
            CudnnProduct::ToWeight => plan.to_weight_algorithms(handle, precision)?,
        };
        // cuDNN's advice and its answer to what an algorithm needs may differ.
        let mut refused = None;
        for (algorithm, math_type) in candidates {
            plan.algorithm = algorithm;
            // What is advised for numbers in f32 may not round them.
            if precision != CudnnPrecision::F32 {
                set_math_type(&plan.convolution, math_type)?;
            }
            match plan.find_workspace(handle) {
                Ok(workspace) => {
                    tracing::debug!(
                        "cuDNN computes {product:?} of {sizes:?} in {precision:?} by {algorithm:?}, \
                         {math_type:?}, with {workspace} bytes"
                    );
                    return Ok(Self { workspace, ..plan });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::Unsupported { what: format!("{sizes:?} in cuDNN") }))
    }

    /// The bytes that the algorithm uses beside the tensors.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    fn find_workspace(&self, handle: &mut CudnnHandle) -> Result<usize> {
        let (handle, xs, ys) = (handle.0, self.xs.0, self.ys.0);
        let (weight, convolution) = (self.weight.0, self.convolution.0);
        let bytes = match self.algorithm {
            // SAFETY: the handle and the descriptors are alive.
            CudnnAlgorithm::Forward(algorithm) => unsafe {
                result::get_convolution_forward_workspace_size(
                    handle,
                    xs,
                    weight,
                    convolution,
                    ys,
                    algorithm,
                )
            },
            // SAFETY: as above.
            CudnnAlgorithm::ToInput(algorithm) => unsafe {
                result::get_convolution_backward_data_workspace_size(
                    handle,
                    weight,
                    ys,
                    convolution,
                    xs,
                    algorithm,
                )
            },
            // SAFETY: as above.
            CudnnAlgorithm::ToWeight(algorithm) => unsafe {
                result::get_convolution_backward_filter_workspace_size(
                    handle,
                    xs,
                    ys,
                    convolution,
                    weight,
                    algorithm,
                )
            },
        };
        bytes.map_err(library_error("cudnnGetConvolutionWorkspaceSize"))
    }

    /// Enqueues the product. The regions are those of input, weight and result, with the lengths of
    /// the plan's sizes and on the stream of the handle, and so is the workspace.
    pub(super) fn enqueue(
        &self,
        handle: &mut CudnnHandle,
        [xs, weight, ys]: [Region<'_>; 3],
        workspace: Option<Region<'_>>,
    ) -> Result<()> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one, zero) = ((&raw const one).cast::<c_void>(), (&raw const zero).cast::<c_void>());
        let bytes = workspace.map_or(0, Region::bytes);
        assert!(bytes >= self.workspace, "a workspace of {bytes} bytes");
        let workspace = workspace.map_or(ptr::null_mut(), |region| region.at() as *mut c_void);
        let [x, w, y] = [xs, weight, ys].map(|region| region.at() as *mut c_void);
        let (handle, xs, ys) = (handle.0, self.xs.0, self.ys.0);
        let (weight, convolution) = (self.weight.0, self.convolution.0);
        let call = match self.algorithm {
            CudnnAlgorithm::Forward(_) => "cudnnConvolutionForward",
            CudnnAlgorithm::ToInput(_) => "cudnnConvolutionBackwardData",
            CudnnAlgorithm::ToWeight(_) => "cudnnConvolutionBackwardFilter",
        };
        recent::note(call, None);
        let done = match self.algorithm {
            // SAFETY: invariants (borrow) and (one stream) of `cuda`, and the assertions on the
            // lengths in `Gpu::product`. The handle works on the stream of the memory.
            CudnnAlgorithm::Forward(algorithm) => unsafe {
                result::convolution_forward(
                    handle,
                    one,
                    xs,
                    x,
                    weight,
                    w,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    ys,
                    y,
                )
            },
            // SAFETY: as above.
            CudnnAlgorithm::ToInput(algorithm) => unsafe {
                result::convolution_backward_data(
                    handle,
                    one,
                    weight,
                    w,
                    ys,
                    y,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    xs,
                    x,
                )
            },
            // SAFETY: as above.
            CudnnAlgorithm::ToWeight(algorithm) => unsafe {
                result::convolution_backward_filter(
                    handle,
                    one,
                    xs,
                    x,
                    ys,
                    y,
                    convolution,
                    algorithm,
                    workspace,
                    bytes,
                    zero,
                    weight,
                    w,
                )
            },
        };
        done.map_err(library_error(call))
    }
}

/// An algorithm, and the arithmetic that it is advised with.
type Candidate = (CudnnAlgorithm, sys::cudnnMathType_t);

/// Defines a function that asks cuDNN for algorithms: those that give the same bits in every run and need little
/// memory, the fastest first, and the general one behind them.
macro_rules! algorithms {
    ($name:ident, $variant:ident, $get:path, $call:literal, ($a:ident, $b:ident, $c:ident), $perf:ty,
     $general:path) => {
        impl ConvolutionPlan {
            fn $name(
                &self,
                handle: &mut CudnnHandle,
                precision: CudnnPrecision,
            ) -> Result<Vec<Candidate>> {
                let mut found = [const { MaybeUninit::<$perf>::uninit() }; MOST_ALGORITHMS];
                let mut count = 0;
                // SAFETY: the handle and the descriptors are alive, and `found` has the length that
                // cuDNN is told.
                let asked = unsafe {
                    $get(
                        handle.0,
                        self.$a.0,
                        self.$b.0,
                        self.convolution.0,
                        self.$c.0,
                        MOST_ALGORITHMS as i32,
                        &raw mut count,
                        found.as_mut_ptr().cast(),
                    )
                };
                asked.map_err(library_error($call))?;
                let count = usize::try_from(count).unwrap_or(0).min(MOST_ALGORITHMS);
                // SAFETY: cuDNN has written `count` of them.
                let found = found[..count].iter().map(|perf| unsafe { perf.assume_init() });
                let fits = |perf: &$perf| {
                    perf.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                        && perf.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
                        && perf.memory <= MOST_WORKSPACE
                };
                let found = found.filter(fits).map(|perf| (perf.algo, perf.mathType));
                let all = found.chain([($general, precision.math_type())]);
                Ok(all
                    .map(|(algorithm, math)| (CudnnAlgorithm::$variant(algorithm), math))
                    .collect())
            }
        }
    };
}

algorithms!(
    forward_algorithms,
    Forward,
    result::get_convolution_forward_algorithm,
    "cudnnGetConvolutionForwardAlgorithm_v7",
    (xs, weight, ys),
    sys::cudnnConvolutionFwdAlgoPerf_t,
    sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
);
algorithms!(
    to_input_algorithms,
    ToInput,
    result::get_convolution_backward_data_algorithm,
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    (weight, ys, xs),
    sys::cudnnConvolutionBwdDataAlgoPerf_t,
    sys::cudnnConvolutionBwdDataAlgo_t::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
);
algorithms!(
    to_weight_algorithms,
    ToWeight,
    result::get_convolution_backward_filter_algorithm,
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    (xs, ys, weight),
    sys::cudnnConvolutionBwdFilterAlgoPerf_t,
    sys::cudnnConvolutionBwdFilterAlgo_t::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
);

fn int(size: usize) -> Result<i32> {
    i32::try_from(size)
        .map_err(|_| Error::Unsupported { what: format!("a size of {size} in cuDNN") })
}

fn ints(sizes: [usize; 4]) -> Result<[i32; 4]> {
    let [a, b, c, d] = sizes;
    Ok([int(a)?, int(b)?, int(c)?, int(d)?])
}

/// Numbers one after the other.
fn tensor(
    data: sys::cudnnDataType_t,
    dims: [usize; 4],
) -> Result<CudnnDescriptor<sys::cudnnTensorDescriptor_t>> {
    let (dims, format) = (ints(dims)?, sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW);
    let made = result::create_tensor_descriptor();
    let made = made.map_err(library_error("cudnnCreateTensorDescriptor"))?;
    let made = Descriptor(made, result::destroy_tensor_descriptor);
    // SAFETY: the descriptor is alive.
    let set = unsafe { result::set_tensor4d_descriptor(made.0, format, data, dims) };
    set.map_err(library_error("cudnnSetTensor4dDescriptor"))?;
    Ok(made)
}

/// Numbers one after the other.
fn filter(
    data: sys::cudnnDataType_t,
    dims: [usize; 4],
) -> Result<CudnnDescriptor<sys::cudnnFilterDescriptor_t>> {
    let (dims, format) = (ints(dims)?, sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW);
    let made = result::create_filter_descriptor();
    let made = made.map_err(library_error("cudnnCreateFilterDescriptor"))?;
    let made = Descriptor(made, result::destroy_filter_descriptor);
    // SAFETY: the descriptor is alive.
    let set = unsafe { result::set_filter4d_descriptor(made.0, data, format, dims) };
    set.map_err(library_error("cudnnSetFilter4dDescriptor"))?;
    Ok(made)
}

/// A cross-correlation whose sums are computed in f32.
fn convolution(
    sizes: &Convolution,
    math: sys::cudnnMathType_t,
) -> Result<CudnnDescriptor<sys::cudnnConvolutionDescriptor_t>> {
    let Convolution { stride, padding, dilation, groups, .. } = *sizes;
    let [pad_height, pad_width, down, right] = ints([padding.0, padding.1, stride.0, stride.1])?;
    let [dilation_height, dilation_width, groups, _] = ints([dilation.0, dilation.1, groups, 0])?;
    let made = result::create_convolution_descriptor();
    let made = made.map_err(library_error("cudnnCreateConvolutionDescriptor"))?;
    let made = Descriptor(made, result::destroy_convolution_descriptor);
    let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    let float = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
    // SAFETY: the descriptor is alive.
    let set = unsafe {
        result::set_convolution2d_descriptor(
            made.0,
            pad_height,
            pad_width,
            down,
            right,
            dilation_height,
            dilation_width,
            mode,
            float,
        )
    };
    set.map_err(library_error("cudnnSetConvolution2dDescriptor"))?;
    // SAFETY: the descriptor is alive.
    let set = unsafe { result::set_convolution_group_count(made.0, groups) };
    set.map_err(library_error("cudnnSetConvolutionGroupCount"))?;
    set_math_type(&made, math)?;
    Ok(made)
}

fn set_math_type(
    convolution: &CudnnDescriptor<sys::cudnnConvolutionDescriptor_t>,
    math: sys::cudnnMathType_t,
) -> Result<()> {
    // SAFETY: the descriptor is alive.
    let set = unsafe { result::set_convolution_math_type(convolution.0, math) };
    set.map_err(library_error("cudnnSetConvolutionMathType"))
}
