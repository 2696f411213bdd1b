//! A captured graph of candle's operations.

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{Device, Tensor, Var};

#[test]
fn a_captured_graph_runs_again_with_new_numbers() {
    let gpu = Device::new_cuda_with_stream(0).expect("the software GPU");
    // With events, a capture would wait for what was recorded before it, which CUDA refuses.
    // SAFETY: everything here is on one stream.
    unsafe { gpu.as_cuda_device().unwrap().disable_event_tracking() };
    let stream = gpu.as_cuda_device().unwrap().cuda_stream();
    let x = Var::from_tensor(&Tensor::new(&[1f32, 2., 3.], &gpu).unwrap()).unwrap();
    let work = || x.affine(2., 1.).and_then(|y| y.sqr()).unwrap();
    work();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).unwrap();
    let y = work();
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    for k in 1..4 {
        x.set(&Tensor::new(&[k as f32, 0., -1.], &gpu).unwrap()).unwrap();
        graph.launch().unwrap();
        assert_eq!(y.to_vec1::<f32>().unwrap(), [(2. * k as f32 + 1.).powi(2), 1., 1.]);
    }
}
