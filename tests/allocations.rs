//! A training step in its steady state allocates nothing large except the tensors of the user, and a prediction at most
//! twice the memory of its outputs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Mutex;

use candelabrum::memory::heap::{self, CountedHeap};
use candelabrum::models::{Cnn, Mlp};
use candelabrum::prelude::*;
use candelabrum_testkit::{LargeAllocations, RecordedAllocations, mnist_cnn_recipe};

/// gemm packs the operands of each product into memory that it allocates (`dyn_stack`). A caller
/// cannot provide this memory. An allocator such as mimalloc reuses it.
#[global_allocator]
static ALLOCATOR: CountedHeap<LargeAllocations> =
    CountedHeap(LargeAllocations::above(4096, "dyn_stack::mem::MemBuffer::new"));

/// The allocator records every thread.
static TURN: Mutex<()> = Mutex::new(());

const BATCH: usize = mnist_cnn_recipe::BATCH_SIZE;

/// The sizes in elements of the large allocations of one step, after some warm-up steps.
fn of_a_step(
    model: &impl Model,
    params: &Params,
    optimizer: impl Optimizer + 'static,
) -> Vec<usize> {
    model.compile(params, (1, 1, 28, 28)).unwrap();
    let mut opt = DistOpt::new(optimizer, params, &World::single()).unwrap();
    let batches: Vec<_> = (0..2).map(|i| mnist_cnn_recipe::batch(i).unwrap()).collect();
    let mut step = |number: usize| {
        let (images, labels) = &batches[number % 2];
        model.train_one_batch(&mut opt, images, labels, DistOption::Fp32, 0.0).unwrap();
    };
    (0..20).for_each(&mut step);
    let RecordedAllocations { sizes, excused } = ALLOCATOR.0.during(|| step(20));
    assert!(excused > 0, "the products' memory is seen");
    sizes.into_iter().map(|bytes| bytes / size_of::<f32>()).collect()
}

#[test]
fn a_step_allocates_the_results_of_its_layers_and_nothing_else() {
    let _turn = TURN.lock().unwrap();
    // These remain because the user may keep a layer's result. So its memory belongs to candle,
    // which frees it with the last reference.
    let cnn = [
        BATCH * 20 * 24 * 24, // conv1
        BATCH * 20 * 12 * 12, // pool
        BATCH * 50 * 8 * 8,   // conv2
        BATCH * 50 * 4 * 4,   // pool
        BATCH * 500,          // linear1; the 64 x 10 logits are small
    ];
    let mlp = [BATCH * 1024, BATCH * 1024];
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let params = Params::new(0);
            let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
            let sizes = of_a_step(&Cnn::new(&params.root(), 10), &params, sgd);
            assert_eq!(sizes, cnn, "elements per allocation, {threads} thread(s)");

            let params = Params::new(0);
            let sizes = of_a_step(&Mlp::new(&params.root(), 10), &params, AdamW::new(1e-3));
            assert_eq!(sizes, mlp, "elements per allocation, {threads} thread(s)");
        });
    }
}

#[test]
fn a_prediction_has_its_outputs_twice_in_memory() {
    const SAMPLES: usize = 20_000;
    const OUTPUTS: usize = 100;
    let _turn = TURN.lock().unwrap();
    let params = Params::new(1);
    let model = FromModule(Linear::new(&params.root(), OUTPUTS));
    let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt);
    trainer.compile((1, 4)).unwrap();
    let xs = Tensor::ones((SAMPLES, 4), DType::F32, &Device::Cpu).unwrap();
    let data = TensorDataset::single(xs).unwrap();
    heap::forget_peak();
    let before = heap::in_use().unwrap();
    let outputs = trainer.predict(&data, 100).unwrap();
    let most = heap::peak().unwrap() - before;
    let bytes = outputs.elem_count() * size_of::<f32>();
    assert_eq!(bytes, 4 * SAMPLES * OUTPUTS);
    // A few batches are under way, and their inputs.
    assert!(most < 2 * bytes + bytes / 4, "{most} of {bytes}");
}
