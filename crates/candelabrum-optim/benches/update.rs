//! One update of each optimizer, beside a copy of the parameter; items are elements.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-optim
//! ```
//!
//! divan prints allocations where there are any. An update makes none; the first one that asks for
//! the rayon pool starts it.

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_optim::{
    AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Clip, Lamb, Lars, Muon, Optimizer, ParamInfo,
    RmsProp, Sgd, clip,
};
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Within the second-level cache, and beyond every cache.
const SIZES: [usize; 2] = [1 << 14, 1 << 24];

const NAMES: [&str; 12] = [
    "sgd",
    "sgd_momentum",
    "adam",
    "adam_amsgrad",
    "adamw",
    "rms_prop_centered_momentum",
    "ada_grad",
    "lamb",
    "lars",
    "adafactor",
    "adamw_8bit",
    "adamw_bf16_state",
];

fn make(name: &str) -> Box<dyn Optimizer> {
    match name {
        "sgd" => Box::new(Sgd::new(1e-3)),
        "sgd_momentum" => Box::new(Sgd::new(1e-3).momentum(0.9)),
        "adam" => Box::new(Adam::new(1e-3)),
        "adam_amsgrad" => Box::new(Adam::new(1e-3).amsgrad()),
        "adamw" => Box::new(AdamW::new(1e-3)),
        "rms_prop_centered_momentum" => Box::new(RmsProp::new(1e-3).centered().momentum(0.9)),
        "ada_grad" => Box::new(AdaGrad::new(1e-3)),
        "lamb" => Box::new(Lamb::new(1e-3)),
        "lars" => Box::new(Lars::new(1e-3)),
        "adafactor" => Box::new(Adafactor::new(1e-3)),
        "adamw_8bit" => Box::new(AdamW8bit::new(1e-3)),
        "adamw_bf16_state" => Box::new(AdamW::new(1e-3).bf16_state()),
        other => panic!("no optimizer {other}"),
    }
}

#[divan::bench(args = NAMES, consts = SIZES)]
fn update<const N: usize>(bencher: Bencher<'_, '_>, name: &str) {
    let mut optimizer = make(name);
    optimizer.bind(&[ParamInfo::on_host("p", &[N])]).unwrap();
    let (mut value, grad) = (vec![1.0; N], vec![1e-3; N]);
    bencher.counter(ItemsCount::new(N)).bench_local(|| {
        optimizer.update(0, black_box(&mut value).into(), black_box(&grad).into()).unwrap();
        optimizer.step();
    });
}

/// A matrix of a transformer. The items are multiplications and additions of its iterations.
#[divan::bench(consts = [64, 256, 768])]
fn muon<const N: usize>(bencher: Bencher<'_, '_>) {
    let mut optimizer = Muon::new(1e-3);
    optimizer.bind(&[ParamInfo::on_host("p", &[N, 4 * N])]).unwrap();
    let (mut value, grad) = (
        vec![1.0; 4 * N * N],
        (0..4 * N * N).map(|i| ((i * 7919) % 1009) as f32).collect::<Vec<_>>(),
    );
    bencher.counter(ItemsCount::new(2 * 45 * N * N * N)).bench_local(|| {
        optimizer.update(0, black_box(&mut value).into(), black_box(&grad).into()).unwrap();
        optimizer.step();
    });
}

#[divan::bench(consts = SIZES)]
fn clip_norm<const N: usize>(bencher: Bencher<'_, '_>) {
    // One element is made large before every call, so that there always is something to clip.
    let mut grads = vec![1.0; N];
    bencher.counter(ItemsCount::new(N)).bench_local(|| {
        grads[0] = 10.0;
        clip(Clip::Norm(1.0), &mut [black_box(&mut grads).into()])
    });
}

#[divan::bench(consts = SIZES)]
fn copy<const N: usize>(bencher: Bencher<'_, '_>) {
    let (mut value, grad) = (vec![1.0_f32; N], vec![1e-3; N]);
    bencher
        .counter(ItemsCount::new(N))
        .bench_local(|| black_box(&mut value).copy_from_slice(black_box(&grad)));
}
