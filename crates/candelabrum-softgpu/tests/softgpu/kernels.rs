//! Kernels of our own, compiled by NVRTC.

use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::compile_ptx;
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use std::sync::Arc;

use crate::compare::gpu;

/// The first kernel of this name in the source, and a stream of a context of its own.
pub(crate) fn kernel(source: &str, name: &str) -> (CudaFunction, Arc<CudaStream>) {
    let context = CudaContext::new(0).expect("the software GPU");
    let module = context.load_module(compile_ptx(source).expect("a program")).expect("a module");
    (module.load_function(name).expect("a kernel"), context.new_stream().expect("a stream"))
}

pub(crate) fn one_block(threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

#[test]
fn a_kernel_gives_the_hosts_bits() {
    let (step, stream) = kernel(
        r#"
extern "C" __global__ void step(float *w, float *v, const float *g, float lr, float momentum,
                                unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float u = momentum * v[i] + g[i];
    v[i] = u;
    w[i] -= lr * u;
}"#,
        "step",
    );
    let n = 5000;
    let numbers = |k: usize| (0..n).map(|i| ((i * k) % 97) as f32 / 97.0).collect::<Vec<f32>>();
    let (mut w, mut v, g) = (numbers(3), numbers(5), numbers(7));
    let mut dw = stream.clone_htod(&w).unwrap();
    let mut dv = stream.clone_htod(&v).unwrap();
    let dg = stream.clone_htod(&g).unwrap();
    let (lr, momentum, count) = (0.1f32, 0.9f32, n as u32);
    for _ in 0..3 {
        let mut builder = stream.launch_builder(&step);
        builder.arg(&mut dw).arg(&mut dv).arg(&dg).arg(&lr).arg(&momentum).arg(&count);
        // SAFETY: the arguments are those of the kernel, which writes only the first n elements.
        unsafe { builder.launch(LaunchConfig::for_num_elems(count)) }.unwrap();
        for i in 0..n {
            v[i] = momentum * v[i] + g[i];
            w[i] -= lr * v[i];
        }
    }
    assert_eq!(stream.clone_dtoh(&dw).unwrap(), w);
    assert_eq!(stream.clone_dtoh(&dv).unwrap(), v);
}

#[test]
fn constants_can_be_set() {
    let source = r#"
__constant__ float filter[4];
extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= filter[threadIdx.x % 4]; }"#;
    let context = CudaContext::new(0).expect("the software GPU");
    let module = context.load_module(compile_ptx(source).expect("a program")).expect("a module");
    let stream = context.new_stream().expect("a stream");
    let mut filter = module.get_global("filter", &stream).expect("the constant");
    assert_eq!(filter.len(), 16);
    // SAFETY: the constant is four floats.
    let mut filter = unsafe { filter.transmute_mut::<f32>(4) }.expect("four floats");
    stream.memcpy_htod(&[1f32, 2., 3., 4.], &mut filter).unwrap();
    let scale = module.load_function("scale").expect("a kernel");
    let mut x = stream.clone_htod(&[1f32; 8]).unwrap();
    let mut builder = stream.launch_builder(&scale);
    builder.arg(&mut x);
    // SAFETY: the argument is that of the kernel.
    unsafe { builder.launch(one_block(8)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1., 2., 3., 4., 1., 2., 3., 4.]);
}

#[test]
fn nvrtc_finds_no_headers_of_the_host() {
    let source = "#include <stdint.h>\nextern \"C\" __global__ void f() {}";
    assert!(compile_ptx(source).is_err());
}

#[test]
fn dynamic_shared_memory_and_shuffles_work() {
    let (sum, stream) = kernel(
        r#"
extern "C" __global__ void __launch_bounds__(128) sum(const float *x, float *out) {
    extern __shared__ float all[];
    unsigned t = threadIdx.x;
    float v = x[t];
    for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffff, v, s);
    if (t % 32 == 0) all[t / 32] = v;
    __syncthreads();
    if (t == 0) *out = all[0] + all[1] + all[2] + all[3];
}"#,
        "sum",
    );
    let x = stream.clone_htod(&(0..128).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let mut out = stream.alloc_zeros::<f32>(1).unwrap();
    let launch = |config: LaunchConfig, out: &mut _| {
        let mut builder = stream.launch_builder(&sum);
        builder.arg(&x).arg(out);
        // SAFETY: the arguments are those of the kernel.
        unsafe { builder.launch(config) }.map(drop)
    };
    let config = LaunchConfig { shared_mem_bytes: 16, ..one_block(128) };
    launch(config, &mut out).unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [127. * 128. / 2.]);
    // Outside of the limits, as on a GPU: the bounds of the kernel, a block, its shared memory.
    for (threads, bytes) in [(256, 16), (2048, 16), (128, 60 << 10)] {
        let config = LaunchConfig { shared_mem_bytes: bytes, ..one_block(threads) };
        assert!(launch(config, &mut out).is_err(), "{threads} threads, {bytes} bytes");
    }
}

#[test]
fn arithmetic_gives_one_nan_and_moves_keep_its_bits() {
    let (nans, stream) = kernel(
        r#"
extern "C" __global__ void nans(unsigned *out, const float *in, const float *numbers, float *sum) {
    float x = in[0], y = in[1], one = numbers[0], infinity = numbers[1];
    unsigned n = 0;
    auto give = [&](float v) { out[n++] = __float_as_uint(v); };
    // Moves.
    give(x);
    give(one > infinity ? one : x);
    give(__shfl_sync(1, y, 0));
    // Arithmetic.
    give(x + one);
    give(one - x);
    give(y * one);
    give(one / y);
    give(x + y);
    give(fmaf(x, one, one));
    give(sqrtf(y));
    give(sqrtf(-one));
    give(infinity - infinity);
    give(expf(x));
    give(fmaxf(x, y));
    give(max(y, x));
    atomicAdd(sum, x);
    give(*sum);
    float many = one;
    for (int i = 0; i < 4; i++) many += in[i];
    give(many);
    // Both narrow types, by their operators and from f32.
    __half h = __ushort_as_half(0xfe01);
    give(__uint_as_float(__half_as_ushort(h)));
    give(__uint_as_float(__half_as_ushort(h + __half(one))));
    give(__uint_as_float(__half_as_ushort(__float2half(y))));
    give(__uint_as_float(__bfloat16_as_ushort(__float2bfloat16(y))));
}"#,
        "nans",
    );
    let (x, y) = (0x7fc1_2345_u32, 0xffc5_4321);
    let nans_in = [x, y, x, y].map(f32::from_bits);
    let input = stream.clone_htod(&nans_in).unwrap();
    let numbers = stream.clone_htod(&[1f32, f32::INFINITY]).unwrap();
    let mut out = stream.alloc_zeros::<u32>(21).unwrap();
    let mut sum = stream.alloc_zeros::<f32>(1).unwrap();
    let mut builder = stream.launch_builder(&nans);
    builder.arg(&mut out).arg(&input).arg(&numbers).arg(&mut sum);
    // SAFETY: the arguments are those of the kernel, which writes 21 numbers.
    unsafe { builder.launch(one_block(1)) }.unwrap();
    let out = stream.clone_dtoh(&out).unwrap();
    assert_eq!(out[..3], [x, x, y], "moves");
    assert_eq!(out[3..17], [0x7fff_ffff; 14], "arithmetic in f32");
    assert_eq!(out[17..], [0xfe01, 0x7fff, 0x7fff, 0x7fff], "f16 and bf16");
}

#[test]
fn products_give_one_nan() {
    let gpu = gpu();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let nan = Tensor::new(&[[f32::from_bits(0xffc5_4321)]], &Device::Cpu).unwrap();
        let xs = nan.to_dtype(dtype).unwrap().to_device(&gpu).unwrap();
        let product = xs.matmul(&xs).unwrap().to_device(&Device::Cpu).unwrap();
        let bits = match dtype {
            DType::F32 => product.to_vec2::<f32>().unwrap()[0][0].to_bits(),
            DType::F16 => product.to_vec2::<f16>().unwrap()[0][0].to_bits().into(),
            _ => product.to_vec2::<bf16>().unwrap()[0][0].to_bits().into(),
        };
        assert_eq!(bits, if dtype == DType::F32 { 0x7fff_ffff } else { 0x7fff }, "{dtype:?}");
    }
}
