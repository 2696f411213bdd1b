//! A training step in its steady state allocates nothing large except the tensors of the user.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use candelabrum::models::{Cnn, Mlp};
use candelabrum::prelude::*;
use candelabrum_testkit::{Large, LargeAllocations, mnist_cnn_recipe};

/// gemm packs the operands of each product into memory that it allocates (`dyn_stack`). A caller
/// cannot provide this memory. An allocator such as mimalloc reuses it.
#[global_allocator]
static ALLOCATOR: LargeAllocations =
    LargeAllocations::above(4096, "dyn_stack::mem::MemBuffer::new");

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
    let Large { sizes, excused } = ALLOCATOR.during(|| step(20));
    assert!(excused > 0, "the products' memory is seen");
    sizes.into_iter().map(|bytes| bytes / size_of::<f32>()).collect()
}

/// A single test, because the allocator records every thread.
#[test]
fn a_step_allocates_the_results_of_its_layers_and_nothing_else() {
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
