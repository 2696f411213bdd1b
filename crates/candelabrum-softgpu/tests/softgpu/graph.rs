//! A captured graph of candle's operations.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{CudaStream, DriverError, sys};
use candle_core::{Device, Tensor, Var};

const MODE: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const NO_FLAGS: sys::CUgraphInstantiate_flags = sys::CUgraphInstantiate_flags(0);
const AUTO_FREE: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

fn gpu() -> (Device, Arc<CudaStream>) {
    let gpu = Device::new_cuda_with_stream(0).expect("the software GPU");
    // With events, a capture would wait for what was recorded before it, which CUDA refuses.
    // SAFETY: everything here is on one stream.
    unsafe { gpu.as_cuda_device().unwrap().disable_event_tracking() };
    let stream = gpu.as_cuda_device().unwrap().cuda_stream();
    (gpu, stream)
}

#[test]
fn a_captured_graph_runs_again_with_new_numbers() {
    let (gpu, stream) = gpu();
    let x = Var::from_tensor(&Tensor::new(&[1f32, 2., 3.], &gpu).unwrap()).unwrap();
    let work = || x.affine(2., 1.).and_then(|y| y.sqr()).unwrap();
    work();
    stream.begin_capture(MODE).unwrap();
    let y = work();
    let graph = stream.end_capture(AUTO_FREE).unwrap().expect("a graph");
    for k in 1..4 {
        x.set(&Tensor::new(&[k as f32, 0., -1.], &gpu).unwrap()).unwrap();
        graph.launch().unwrap();
        assert_eq!(y.to_vec1::<f32>().unwrap(), [(2. * k as f32 + 1.).powi(2), 1., 1.]);
    }
}

#[test]
fn memory_may_be_freed_by_another_graph_and_must_be_freed_before_the_next_launch() {
    let (gpu, stream) = gpu();
    let x = Tensor::new(&[1f32, 2.], &gpu).unwrap();
    stream.begin_capture(MODE).unwrap();
    let y = x.affine(2., 1.).unwrap();
    let first = stream.end_capture(NO_FLAGS).unwrap().expect("a graph");
    stream.begin_capture(MODE).unwrap();
    drop(y);
    let second = stream.end_capture(NO_FLAGS).unwrap().expect("a graph");
    let invalid = Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(second.launch(), invalid, "nothing is allocated yet");
    for _ in 0..3 {
        first.launch().unwrap();
        assert_eq!(first.launch(), invalid, "the memory of the last launch is not freed");
        second.launch().unwrap();
    }
}

/// As on an H200: the copy is recorded, and the program goes on with other numbers.
#[test]
fn numbers_that_are_read_in_a_capture_are_not_those_of_the_device() {
    let (gpu, stream) = gpu();
    let x = Tensor::new(&[1f32, 2.], &gpu).unwrap();
    stream.begin_capture(MODE).unwrap();
    let read = [x.to_vec1::<f32>(), x.to_vec1::<f32>()];
    assert!(read.iter().all(|numbers| numbers.as_ref().is_ok_and(|numbers| numbers.len() == 2)));
    let graph = stream.end_capture(NO_FLAGS).unwrap().unwrap();
    graph.launch().unwrap();
    assert_eq!(x.to_vec1::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn a_call_that_a_capture_does_not_permit_spoils_it() {
    let (gpu, stream) = gpu();
    let x = Tensor::new(&[1f32, 2.], &gpu).unwrap();
    stream.begin_capture(MODE).unwrap();
    assert!(stream.synchronize().is_err(), "the host cannot wait");
    assert!(x.affine(2., 1.).is_err(), "the capture is spoilt");
    let ended = stream.end_capture(NO_FLAGS).map(drop);
    let invalid = Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(ended, invalid);
    assert_eq!(x.to_vec1::<f32>().unwrap(), [1., 2.]);
    stream.begin_capture(MODE).unwrap();
    drop(x);
    assert!(stream.end_capture(NO_FLAGS).is_err(), "the memory is not a graph's");
}
