//! Planted mistakes must show.

use candle_core::cuda_backend::cudarc::driver::{CudaContext, PushKernelArg};

use crate::child::{self, EndedProgram};
use crate::kernels::{kernel, one_block};

/// Runs the mistake in a child: there this function calls it and returns `None`.
fn planted(test: &str, variables: &[(&str, &str)], mistake: fn()) -> Option<EndedProgram> {
    if child::is_child() {
        mistake();
        return None;
    }
    Some(child::run(&format!("mistakes::{test}"), variables))
}

/// The sum of 128 ones, with barriers or without.
fn sum_of_ones(waits: i32) -> f32 {
    let (total, stream) = kernel(
        r#"
extern "C" __global__ void total(const float *x, float *out, int waits) {
    __shared__ float all[128];
    unsigned t = threadIdx.x;
    all[t] = x[t];
    for (unsigned s = 64; s > 0; s >>= 1) {
        if (waits) __syncthreads();
        if (t < s) all[t] += all[t + s];
    }
    if (t == 0) *out = all[0];
}"#,
        "total",
    );
    let x = stream.clone_htod(&[1f32; 128]).unwrap();
    let mut out = stream.alloc_zeros::<f32>(1).unwrap();
    let mut builder = stream.launch_builder(&total);
    builder.arg(&x).arg(&mut out).arg(&waits);
    // SAFETY: the arguments are those of the kernel.
    unsafe { builder.launch(one_block(128)) }.unwrap();
    stream.clone_dtoh(&out).unwrap()[0]
}

#[test]
fn a_forgotten_barrier_gives_another_number() {
    let mistake = || println!("with {} without {}", sum_of_ones(1), sum_of_ones(0));
    let name = "a_forgotten_barrier_gives_another_number";
    let Some(ended) = planted(name, &[], mistake) else { return };
    assert!(ended.output.contains("with 128 without "), "{}", ended.output);
    assert!(!ended.output.contains("without 128"), "{}", ended.output);
}

/// Launches a kernel that takes one pointer, on 64 threads and 64 numbers.
fn launch_on_numbers(source: &str) -> Result<Vec<f32>, String> {
    let (function, stream) = kernel(source, "wrong");
    let mut out = stream.alloc_zeros::<f32>(64).unwrap();
    let mut builder = stream.launch_builder(&function);
    builder.arg(&mut out);
    // SAFETY: the software GPU finds what is wrong with the kernel.
    unsafe { builder.launch(one_block(64)) }.map_err(|error| error.to_string())?;
    stream.clone_dtoh(&out).map_err(|error| error.to_string())
}

#[test]
fn different_barriers_are_an_error() {
    fn mistake() {
        let result = launch_on_numbers(
            r#"
extern "C" __global__ void wrong(float *out) {
    if (threadIdx.x < 5)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}"#,
        );
        println!("result: {result:?}");
    }
    let Some(ended) = planted("different_barriers_are_an_error", &[], mistake) else { return };
    assert!(ended.output.contains("result: Err"), "{}", ended.output);
    let place = "different barriers: nvrtc.cu:4 and nvrtc.cu:6";
    assert!(ended.output.contains(place), "{}", ended.output);
}

#[test]
fn a_barrier_and_a_shuffle_at_once_are_an_error() {
    fn mistake() {
        let result = launch_on_numbers(
            r#"
extern "C" __global__ void wrong(float *out) {
    if (threadIdx.x < 5) __syncthreads();
    else out[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 1);
}"#,
        );
        println!("result: {result:?}");
    }
    let name = "a_barrier_and_a_shuffle_at_once_are_an_error";
    let Some(ended) = planted(name, &[], mistake) else { return };
    assert!(ended.output.contains("result: Err"), "{}", ended.output);
    assert!(ended.output.contains("kernel wrong: block (0,0,0): some threads"), "{}", ended.output);
}

#[test]
fn a_write_past_the_end_ends_the_process() {
    fn mistake() {
        let result = launch_on_numbers(
            "extern \"C\" __global__ void wrong(float *out) { out[threadIdx.x + 1] = 1; }",
        );
        println!("result: {result:?}");
    }
    let check = [("SOFTGPU_CHECK", "1")];
    let name = "a_write_past_the_end_ends_the_process";
    let Some(ended) = planted(name, &check, mistake) else { return };
    assert!(!ended.status.success(), "{}", ended.output);
    let place = "in kernel wrong, block (0,0,0), thread (63,0,0)";
    assert!(ended.output.contains(place), "{}", ended.output);
    let what = "0 bytes past the end of an allocation of 256 bytes";
    assert!(ended.output.contains(what), "{}", ended.output);
}

#[test]
fn a_write_into_the_last_vector_is_seen_when_it_is_freed() {
    fn mistake() {
        let (function, stream) = kernel(
            "extern \"C\" __global__ void wrong(float *out) { out[threadIdx.x + 1] = 1; }",
            "wrong",
        );
        let mut out = stream.alloc_zeros::<f32>(61).unwrap();
        let mut builder = stream.launch_builder(&function);
        builder.arg(&mut out);
        // SAFETY: the write past the end stays in the same 16 bytes.
        unsafe { builder.launch(one_block(61)) }.unwrap();
        drop(out);
        stream.synchronize().unwrap();
    }
    let check = [("SOFTGPU_CHECK", "1")];
    let name = "a_write_into_the_last_vector_is_seen_when_it_is_freed";
    let Some(ended) = planted(name, &check, mistake) else { return };
    assert!(!ended.status.success(), "{}", ended.output);
    assert!(ended.output.contains("244 bytes"), "{}", ended.output);
    assert!(ended.output.contains("written past its end"), "{}", ended.output);
}

#[test]
fn use_after_free_ends_the_process() {
    fn mistake() {
        let (function, stream) = kernel(
            "extern \"C\" __global__ void wrong(unsigned long long p) { ((float *)p)[0] = 1; }",
            "wrong",
        );
        let memory = stream.alloc_zeros::<f32>(64).unwrap();
        let address = {
            use candle_core::cuda_backend::cudarc::driver::DevicePtr;
            memory.device_ptr(&stream).0
        };
        drop(memory);
        let mut builder = stream.launch_builder(&function);
        builder.arg(&address);
        // SAFETY: the software GPU finds that the memory is freed.
        unsafe { builder.launch(one_block(1)) }.unwrap();
        println!("result: {:?}", stream.synchronize());
    }
    let check = [("SOFTGPU_CHECK", "1")];
    let name = "use_after_free_ends_the_process";
    let Some(ended) = planted(name, &check, mistake) else { return };
    assert!(!ended.status.success(), "{}", ended.output);
    assert!(ended.output.contains("byte 0 of a freed allocation of 256 bytes"), "{}", ended.output);
}

/// Two streams: one writes what the other reads. Prints how often the result was wrong, without a
/// wait between them and with one.
fn race() {
    let context = CudaContext::new(0).expect("the software GPU");
    // SAFETY: the streams wait by hand, where they should.
    unsafe { context.disable_event_tracking() };
    let mut wrong = [0; 2];
    for round in 0..10 {
        for (waits, count) in wrong.iter_mut().enumerate() {
            let writer = context.new_stream().unwrap();
            let reader = context.new_stream().unwrap();
            let mut memory = writer.clone_htod(&vec![0f32; 1000]).unwrap();
            writer.synchronize().unwrap();
            let number = round as f32 + 1.0;
            writer.memcpy_htod(&vec![number; 1000], &mut memory).unwrap();
            if waits == 1 {
                reader.join(&writer).unwrap();
            }
            let mut seen = vec![0f32; 1000];
            reader.memcpy_dtoh(&memory, &mut seen).unwrap();
            reader.synchronize().unwrap();
            *count += usize::from(seen[0] != number);
        }
    }
    println!("wrong without a wait {}, with it {}", wrong[0], wrong[1]);
}

#[test]
fn a_missing_wait_between_streams_shows() {
    let mut shown = 0;
    for seed in ["1", "2", "3", "4", "5"] {
        let delays = [("SOFTGPU_ASYNC", "1"), ("SOFTGPU_SEED", seed)];
        let Some(ended) = planted("a_missing_wait_between_streams_shows", &delays, race) else {
            return;
        };
        assert!(ended.output.contains(", with it 0"), "{}", ended.output);
        shown += usize::from(!ended.output.contains("wrong without a wait 0"));
    }
    assert!(shown >= 3, "the missing wait shows with {shown} of 5 seeds");
}

#[test]
fn calls_with_no_bytes_in_a_capture_show_on_request() {
    fn mistake() {
        use candle_core::cuda_backend::cudarc::driver::sys::CUstreamCaptureMode;
        let context = CudaContext::new(0).expect("the software GPU");
        // SAFETY: all work is on one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).unwrap();
        println!("no bytes: {}", stream.alloc_zeros::<u8>(0).is_ok());
    }
    let name = "calls_with_no_bytes_in_a_capture_show_on_request";
    let off = [("SOFTGPU_STRICT", "0")];
    let Some(plain) = planted(name, &off, mistake) else { return };
    assert!(plain.output.contains("no bytes: true"), "{}", plain.output);
    let Some(strict) = planted(name, &[("SOFTGPU_STRICT", "1")], mistake) else { return };
    assert!(strict.output.contains("no bytes: false"), "{}", strict.output);
    let message = "softgpu: an allocation of no bytes in a capture";
    assert!(strict.output.contains(message), "{}", strict.output);
}

#[test]
fn a_function_that_is_missing_is_named() {
    fn mistake() {
        use candle_core::cuda_backend::cudarc::driver::sys;
        let context = CudaContext::new(0).expect("the software GPU");
        context.bind_to_thread().unwrap();
        // SAFETY: the function is not there, so it reads nothing.
        let code = unsafe { sys::cuProfilerStart() };
        println!("result: {code:?}");
    }
    let name = "a_function_that_is_missing_is_named";
    let Some(ended) = planted(name, &[], mistake) else { return };
    assert!(ended.output.contains("result: CUDA_ERROR_NOT_INITIALIZED"), "{}", ended.output);
    let message = "softgpu: cuProfilerStart is not implemented";
    assert!(ended.output.contains(message), "{}", ended.output);
}
