//! The sparse strategies on the GPU have the bits of the same strategies on the host.

use candelabrum::dist::strategy::gpu::{GpuStrategy, average, take_at_least, take_top_k};
use candelabrum::dist::strategy::select::Selector;
use candelabrum::dist::strategy::{Bucket, ErrorFeedback, Message, Strategy, register};
use candelabrum::dist::{
    Collective, DistOptConfig, Error, Payload, StrategyConfig, StrategyState, parameters_sha256,
};
use candelabrum::memory::FlatTensor;
use candelabrum::memory::cuda::{CudaSpanMut, Gpu};
use candelabrum::nn::Init;
use candelabrum::prelude::*;
use candelabrum_testkit::uniform;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::gpu;
use crate::memory::{bits, on};
use crate::ranks::on_ranks;

/// Around the ends of warps, and of the shares of threads and blocks.
const LENGTHS: [usize; 12] = [1, 2, 31, 32, 33, 255, 257, 1000, 2047, 2049, 8193, 70_000];

const SPECIAL: [f32; 12] = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1.0,
];

/// Numbers of several kinds.
fn vectors(len: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<f32>> {
    let kinds: [fn(&mut ChaCha8Rng) -> f32; 5] = [
        |rng| rng.random_range(-1.0_f32..1.0).powi(5),
        |rng| rng.random_range(-2.0_f32..2.0).round(),
        |rng| *SPECIAL.choose(rng).unwrap(),
        |rng| f32::from_bits(rng.random()),
        |_| -0.25,
    ];
    kinds.into_iter().map(|number| (0..len).map(|_| number(rng)).collect()).collect()
}

/// Moves the elements at `positions` to a message with this room, and leaves zeros.
fn take(values: &mut [f32], positions: &[u32], room: usize) -> Vec<i32> {
    let mut message = vec![0; 2 * room];
    for (i, &at) in positions.iter().take(room).enumerate() {
        let value = std::mem::take(&mut values[at as usize]);
        message[i] = at.cast_signed();
        message[room + i] = value.to_bits().cast_signed();
    }
    message
}

fn host_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn words(flat: &FlatTensor) -> Vec<i32> {
    flat.to_host().unwrap().to_vec().unwrap()
}

fn span(flat: &mut FlatTensor) -> CudaSpanMut<'_> {
    flat.span_mut().unwrap().cuda().unwrap()
}

#[test]
fn the_largest_are_those_of_the_selector() {
    let Some(device) = gpu() else { return };
    let gpu = Gpu::from_device(&device).unwrap();
    for len in LENGTHS {
        let mut rng = ChaCha8Rng::seed_from_u64(len as u64);
        for values in vectors(len, &mut rng) {
            let some = rng.random_range(1..=len);
            for k in [0, 1, 2, len / 100, some, len - 1, len, len + 1] {
                let (mut rest, mut positions) = (values.clone(), Vec::new());
                Selector::default().top_k(&values, k, &mut positions);
                let expected = take(&mut rest, &positions, k.min(len));
                let mut flat = on(&device, &values);
                let message = take_top_k(&gpu, span(&mut flat), k).unwrap();
                assert!(words(&message) == expected, "{k} of {len}");
                assert!(bits(&flat) == host_bits(&rest), "the rest of {k} of {len}");
            }
        }
    }
}

#[test]
fn those_from_a_threshold_on_are_those_of_the_selector() {
    let Some(device) = gpu() else { return };
    let gpu = Gpu::from_device(&device).unwrap();
    for len in LENGTHS {
        let mut rng = ChaCha8Rng::seed_from_u64(len as u64);
        for values in vectors(len, &mut rng) {
            let own = *values.choose(&mut rng).unwrap();
            for threshold in [1e-45, own.abs(), 0.5, f32::INFINITY, f32::NAN, -1.0] {
                let mut positions = Vec::new();
                Selector::default().at_least(&values, threshold, &mut positions);
                let count = positions.len();
                for room in [0, count / 2, count, len] {
                    let what = format!("{threshold}: {count} of {len}, room for {room}");
                    let mut rest = values.clone();
                    let _ = take(&mut rest, &positions, room);
                    let mut flat = on(&device, &values);
                    let (taken, number) =
                        take_at_least(&gpu, span(&mut flat), threshold, room).unwrap();
                    assert!(words(&number) == [count as i32], "{what}");
                    assert!(bits(&flat) == host_bits(&rest), "the rest, {what}");
                    // The message may have more room than there are elements.
                    let (sent, room) = (count.min(room), count.min(room) + 3);
                    let expected = take(&mut values.clone(), &positions[..sent], room);
                    assert!(words(&taken.message(count, room).unwrap()) == expected, "{what}");
                    // Among them are NaNs of all bits, and -0.
                    taken.put_back(count, span(&mut flat)).unwrap();
                    assert!(bits(&flat) == host_bits(&values), "put back, {what}");
                }
            }
        }
    }
}

/// Name and length of every parameter. They make several units.
const PARAMS: [(&str, usize); 4] = [("a", 700), ("b", 33), ("c", 1), ("d", 5000)];

const STEPS: u64 = 10;

/// Option, `spars`, error feedback. From case [`WHOLE`] on, several ranks send all units whole.
const CASES: [(DistOption, f32, bool); 8] = [
    (DistOption::SparseTopK, 0.01, true),
    (DistOption::SparseTopK, 0.2, true),
    (DistOption::SparseTopK, 0.01, false),
    (DistOption::SparseThreshold, 0.6, true),
    (DistOption::SparseThreshold, 0.9, false),
    (DistOption::SparseThreshold, 0.999, true),
    (DistOption::SparseTopK, 0.7, true),
    (DistOption::SparseThreshold, 0.05, true),
];

const WHOLE: usize = 6;

/// A model whose gradients do not depend on its parameters, so they have the same bits everywhere.
struct Problem {
    device: Device,
    params: Params,
    opt: DistOpt,
}

impl Problem {
    fn new(world: &World, device: &Device, corr: bool) -> Self {
        let params = Params::on(7, DType::F32, device);
        for (name, len) in PARAMS {
            params.root().param(name, len, Init::Normal { std: 1.0 }).unwrap();
        }
        let mut strategy = StrategyConfig::default();
        strategy.corr = corr;
        let config = DistOptConfig { threshold: Some(800), strategy, ..DistOptConfig::default() };
        let opt = DistOpt::with_config(Sgd::new(0.05), &params, world, config).unwrap();
        Self { device: device.clone(), params, opt }
    }

    /// A step, of which some gradients are zero on all ranks.
    fn step(&mut self, step: u64, option: DistOption, spars: f32) -> Result<(), Error> {
        let term = |(index, param): (usize, &candelabrum::nn::Param)| {
            let seed = 1000 * step + 10 * index as u64 + self.opt.group().rank() as u64;
            let factor = if step % 4 == 3 && index == 3 { 0.0 } else { 1.0 };
            let slope = uniform(PARAMS[index].1, seed, -1.0, 1.0, DType::F32).unwrap();
            let slope = (slope.powf(3.0).unwrap() * factor).unwrap();
            let slope = slope.to_device(&self.device).unwrap();
            (param.tensor() * slope).unwrap().sum_all().unwrap()
        };
        let terms: Vec<Tensor> = self.params.list().iter().enumerate().map(term).collect();
        let loss = Tensor::stack(&terms, 0).unwrap().sum_all().unwrap();
        self.opt.backward_and_update_with(&loss, option, spars)
    }

    /// All that a step changes: the parameters, and the state of the strategies.
    fn state(&self) -> (String, Vec<StrategyState>) {
        (parameters_sha256(&self.params).unwrap(), self.opt.strategy_state().unwrap())
    }
}

fn compare(world: &World, device: &Device) {
    // Where units are sent whole, NCCL adds the numbers of three ranks in an order of its own.
    let cases = if world.world_size() > 2 { &CASES[..WHOLE] } else { &CASES[..] };
    for &case in cases {
        compare_case(world, device, case);
    }
}

fn compare_case(world: &World, device: &Device, case: (DistOption, f32, bool)) {
    let (option, spars, corr) = case;
    let mut on_gpu = Problem::new(world, device, corr);
    let mut on_cpu = Problem::new(world, &Device::Cpu, corr);
    for step in 0..STEPS {
        on_gpu.step(step, option, spars).unwrap();
        on_cpu.step(step, option, spars).unwrap();
        let (own, other) = (on_gpu.state(), on_cpu.state());
        assert_eq!(own, other, "{case:?}, step {step}");
        let digests = world.comm().all_gather_text(&own.0).unwrap();
        assert!(digests.iter().all(|digest| *digest == own.0), "{case:?}: {digests:?}");
        let norms = [&on_gpu, &on_cpu].map(|problem| problem.opt.residual_norm());
        assert!((norms[0] - norms[1]).abs() <= 1e-12 * norms[1], "{case:?}: {norms:?}");
        if step == STEPS / 2 {
            // Each goes on with what the other has saved.
            on_gpu.opt.load_strategy_state(&other.1).unwrap();
            on_cpu.opt.load_strategy_state(&own.1).unwrap();
        }
    }
    let is_whole = world.world_size() > 1 && CASES[WHOLE..].contains(&case);
    assert_eq!(on_gpu.opt.residual_norm() > 0.0, corr && !is_whole, "{case:?}");
    assert_eq!(on_gpu.opt.take_notes(), on_cpu.opt.take_notes(), "{case:?}");
}

#[test]
fn two_ranks_have_the_bits_of_the_host() {
    let ranks = on_ranks(two_ranks_have_the_bits_of_the_host, &[2]);
    ranks.iter().for_each(|world| compare(world, world.device()));
}

#[test]
fn three_ranks_have_the_bits_of_the_host() {
    let ranks = on_ranks(three_ranks_have_the_bits_of_the_host, &[3]);
    ranks.iter().for_each(|world| compare(world, world.device()));
}

#[test]
fn one_rank_has_the_bits_of_the_host() {
    if let Some(device) = gpu() {
        compare(&World::single(), &device);
    }
}

/// A strategy with slices only.
#[derive(Debug, Default)]
struct HostOnly {
    error_feedback: ErrorFeedback,
}

impl Strategy for HostOnly {
    fn describe(&self) -> String {
        "hostOnly".to_owned()
    }

    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        Some(&mut self.error_feedback)
    }

    /// Sends the larger half of the bits of an element: the first one of the parameter whose name comes first, since a
    /// bucket on a GPU has its parameters in another order.
    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> Result<Message, Error> {
        let first = bucket.parameters().min_by(|(a, _), (b, _)| a.name().cmp(b.name()));
        let first = &mut values[first.unwrap().1.start];
        let sent = f32::from_bits(first.to_bits() & 0xffff_0000);
        *first -= sent;
        Ok(Message::new(Collective::AllReduce(ReduceOp::Mean), Payload::from_slice(&[sent])))
    }

    fn aggregate(
        &mut self,
        _: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>, Error> {
        values.fill(received[0].as_slice()?[0]);
        Ok(None)
    }
}

#[test]
fn a_strategy_without_code_for_gpus_works_and_says_so_once() {
    let Some(device) = gpu() else { return };
    let option = register("hostOnly", |_| Ok(Box::new(HostOnly::default()))).unwrap();
    let [on_gpu, on_cpu] = [&device, &Device::Cpu].map(|device| {
        let mut problem = Problem::new(&World::single(), device, true);
        (0..STEPS).for_each(|step| problem.step(step, option, 0.5).unwrap());
        (problem.state(), problem.opt.take_notes())
    });
    assert_eq!(on_gpu.0, on_cpu.0);
    let says = "hostOnly has no code for GPUs: each bucket goes through the host";
    assert_eq!((on_gpu.1, on_cpu.1), (vec![says.to_owned()], Vec::new()));
}

/// A strategy of one's own with code for GPUs. It sends one element, which `forge` may move behind
/// the end of the bucket.
#[derive(Debug)]
struct Forged {
    forge: bool,
}

impl Strategy for Forged {
    fn describe(&self) -> String {
        "forged".to_owned()
    }

    fn on_gpu(&mut self) -> Option<&mut dyn GpuStrategy> {
        Some(self)
    }

    fn compress(&mut self, bucket: &Bucket<'_>, _: &mut [f32]) -> Result<Message, Error> {
        Err(Error::Unsupported { what: format!("{bucket} on the host") })
    }
}

impl GpuStrategy for Forged {
    fn compress(&mut self, bucket: &Bucket<'_>, values: CudaSpanMut<'_>) -> Result<Message, Error> {
        let mut message = take_top_k(&bucket.gpu()?, values, 1)?;
        let mut sent = words(&message);
        if self.forge {
            sent[0] = bucket.len() as i32;
        }
        message.copy_from_host(&FlatTensor::from_slice(&sent))?;
        Ok(Message::new(Collective::AllGather, message.into()))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: CudaSpanMut<'_>,
    ) -> Result<Option<Message>, Error> {
        average(bucket, &received[0], 1, &vec![1; bucket.world_size], values)?;
        Ok(None)
    }
}

#[test]
fn a_position_outside_of_the_unit_fails_the_step() {
    let Some(device) = gpu() else { return };
    let good = register("good", |_| Ok(Box::new(Forged { forge: false }))).unwrap();
    let forged = register("forged", |_| Ok(Box::new(Forged { forge: true }))).unwrap();
    let mut problem = Problem::new(&World::single(), &device, true);
    problem.step(0, good, 0.5).unwrap();
    let before = parameters_sha256(&problem.params).unwrap();
    let error = problem.step(1, forged, 0.5).unwrap_err();
    assert!(matches!(error, Error::Overflow { .. }), "{error}");
    assert_eq!(parameters_sha256(&problem.params).unwrap(), before);
}
