//! Steps over NCCL announce the exchange of their units: the ranks compare headers once, and a rank
//! that does not keep to its announcement fails on every rank at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use candelabrum::candle::backend::BackendStorage;
use candelabrum::candle::{CpuStorage, CudaStorage, CustomOp1, Layout, Shape};
use candelabrum::dist::{BufferSync, Error, Group, parameters_sha256, synchronize_batch_norm};
use candelabrum::nn::{Init, Param};
use candelabrum::prelude::*;
use candelabrum_testkit::{SpanCount, uniform};

use crate::ranks::on_ranks;

/// The units of a step: each parameter is one.
const UNITS: usize = 4;
const LEN: usize = 1000;
const STEPS: usize = 6;
/// The step in which rank 1 fails, after the layout has its final order.
const FAILS: usize = 4;

/// What rank 1 does in the backward pass of one step, after the first units have left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// The pass ends with an error.
    Error,
    /// A parameter gets no gradient.
    Unused,
    Panic,
    /// A collective that the other ranks do not call.
    Collective,
}

/// The identity, with a backward pass that fails.
struct Identity {
    fault: Fault,
    group: Group,
}

impl CustomOp1 for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
    ) -> candelabrum::candle::Result<(CpuStorage, Shape)> {
        candelabrum::candle::bail!("the test is for GPUs")
    }

    fn cuda_fwd(
        &self,
        xs: &CudaStorage,
        layout: &Layout,
    ) -> candelabrum::candle::Result<(CudaStorage, Shape)> {
        Ok((xs.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candelabrum::candle::Result<Option<Tensor>> {
        match self.fault {
            Fault::Error => candelabrum::candle::bail!("a fault on purpose"),
            Fault::Panic => panic!("a panic on purpose"),
            Fault::Collective => self.group.barrier()?,
            Fault::Nothing | Fault::Unused => {}
        }
        Ok(Some(gradient.clone()))
    }
}

/// A product of parameters. Their gradients are complete one after the other.
struct Chain {
    params: Params,
    factors: Vec<Param>,
}

impl Chain {
    fn new(device: &Device) -> Self {
        let params = Params::on(0, DType::F32, device);
        let factor = |i| params.root().param(&format!("factor{i}"), LEN, Init::Const(1.0)).unwrap();
        let factors = (0..UNITS).map(factor).collect();
        Self { params, factors }
    }

    fn loss(&self, world: &World, step: usize, fault: Fault) -> Tensor {
        let seed = (10 * step + world.rank()) as u64;
        let xs = uniform(LEN, seed, 0.5, 1.5, DType::F32).unwrap();
        let mut xs = xs.to_device(world.device()).unwrap();
        for (i, factor) in self.factors.iter().enumerate() {
            if fault == Fault::Unused && i == 1 {
                continue;
            }
            xs = (xs * factor.identity().unwrap()).unwrap();
            if fault != Fault::Nothing && i == 1 {
                xs = xs.apply_op1(Identity { fault, group: world.group() }).unwrap();
            }
        }
        xs.sqr().unwrap().mean_all().unwrap()
    }

    fn opt(&self, world: &World, overlap: bool) -> DistOpt {
        let config = config(overlap);
        DistOpt::with_config(Sgd::new(0.01), &self.params, world, config).unwrap()
    }
}

fn config(overlap: bool) -> DistOptConfig {
    DistOptConfig {
        overlap,
        first_bucket_bytes: 1,
        bucket_bytes: 1,
        buffers: BufferSync::Local,
        ..Default::default()
    }
}

#[test]
fn a_step_exchanges_headers_once() {
    let Some(world) = on_ranks(a_step_exchanges_headers_once, &[2]) else { return };
    let exchanges = SpanCount::new("agree");
    let dense = [DistOption::Fp32, DistOption::Fp16];
    for (option, overlap) in dense.into_iter().flat_map(|option| [(option, true), (option, false)])
    {
        let chain = Chain::new(world.device());
        let mut opt = chain.opt(&world, overlap);
        let mut counts = Vec::new();
        for step in 0..STEPS {
            let loss = chain.loss(&world, step, Fault::Nothing);
            exchanges.take();
            opt.backward_and_update_with(&loss, option, 0.0).unwrap();
            counts.push(exchanges.take());
        }
        println!("{option}, overlap {overlap}: {counts:?} exchanges");
        let figures = opt.figures(option);
        assert_eq!(figures.buckets, (STEPS * UNITS) as u64);
        assert_eq!(figures.early_buckets > 0, overlap);
        // The first steps also agree on the strategy and on the order of the units.
        assert!(counts[2..].iter().all(|&count| count == 1), "{option}: {counts:?}");
    }

    // A normalisation over all ranks exchanges statistics between the units.
    let params = Params::on(3, DType::F32, world.device());
    synchronize_batch_norm(&params, &world.group());
    let (first, norm) = (params.root().pp("first"), params.root().pp("norm"));
    let (first, norm) = (Conv2d::new(&first, 16, 3), BatchNorm2d::new(&norm));
    let out = Conv2d::new(&params.root().pp("out"), 32, 3);
    let loss = |step: u64| {
        let xs = uniform((2, 3, 8, 8), 10 * step + world.rank() as u64, -1.0, 1.0, DType::F32);
        let xs = first.forward(&xs.unwrap().to_device(world.device()).unwrap()).unwrap();
        out.forward(&norm.forward(&xs).unwrap()).unwrap().sqr().unwrap().mean_all().unwrap()
    };
    loss(0);
    let mut opt = DistOpt::with_config(Sgd::new(0.01), &params, &world, config(true)).unwrap();
    let mut counts = Vec::new();
    for step in 0..STEPS {
        let loss = loss(step as u64);
        exchanges.take();
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap();
        counts.push(exchanges.take());
    }
    let units = opt.figures(DistOption::Fp32).buckets as usize / STEPS;
    println!("with a synchronised normalisation: {counts:?} exchanges for {units} units");
    assert!(units > 1 && counts[2..].iter().all(|&count| count == units + 1), "{counts:?}");
    let digests = world.comm().all_gather_text(&parameters_sha256(&params).unwrap()).unwrap();
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn every_rank_hears_why_a_step_fails_and_the_next_one_works() {
    let Some(world) = on_ranks(every_rank_hears_why_a_step_fails_and_the_next_one_works, &[3])
    else {
        return;
    };
    let options = [(DistOption::Fp32, true), (DistOption::Fp32, false), (DistOption::Fp16, true)];
    for (option, overlap) in options {
        for (fault, cause) in
            [(Fault::Error, "a fault on purpose"), (Fault::Unused, "no gradient reached `factor1`")]
        {
            let chain = Chain::new(world.device());
            let mut opt = chain.opt(&world, overlap);
            for step in 0..STEPS {
                let fails = step == FAILS && world.rank() == 1;
                let loss = chain.loss(&world, step, if fails { fault } else { Fault::Nothing });
                let before = parameters_sha256(&chain.params).unwrap();
                let result = opt.backward_and_update_with(&loss, option, 0.0);
                if step != FAILS {
                    result.unwrap();
                    continue;
                }
                let error = result.unwrap_err().to_string();
                let named = world.rank() == 1 || error.contains("rank 1: ");
                assert!(named && error.contains(cause), "{fault:?}: {error}");
                assert_eq!(parameters_sha256(&chain.params).unwrap(), before);
            }
            let digest = parameters_sha256(&chain.params).unwrap();
            let digests = world.comm().all_gather_text(&digest).unwrap();
            assert!(digests.iter().all(|other| *other == digest), "{digests:?}");
        }
    }
}

/// Rank 1 stops in the middle of a list, and its program goes on with the next step.
fn breaks(world: &World, fault: Fault) {
    let chain = Chain::new(world.device());
    let mut opt = chain.opt(world, true);
    for step in 0..FAILS {
        let loss = chain.loss(world, step, Fault::Nothing);
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap();
    }
    let before = parameters_sha256(&chain.params).unwrap();
    let fault = if world.rank() == 1 { fault } else { Fault::Nothing };
    let loss = chain.loss(world, FAILS, fault);
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| {
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)
    }));
    let first = result.unwrap_or_else(|_| {
        let loss = chain.loss(world, FAILS + 1, Fault::Nothing);
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)
    });
    let (took, error) = (start.elapsed(), first.unwrap_err());
    assert!(took < Duration::from_secs(3), "{took:?}: {error}");
    match &error {
        Error::NotAnnounced { rank: 1, .. } => assert_eq!(world.rank(), 1),
        Error::PeerFailed { peer: 1, .. } => assert_ne!(world.rank(), 1),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("where it has announced all_reduce(mean)"), "{error}");
    assert_eq!(parameters_sha256(&chain.params).unwrap(), before);
    // No rank has left yet, and no later step works.
    std::thread::sleep(Duration::from_secs(1));
    let loss = chain.loss(world, FAILS + 1, Fault::Nothing);
    let later = opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0);
    assert_eq!(later.unwrap_err().to_string(), error.to_string());
}

#[test]
fn a_rank_that_calls_another_collective_is_named_on_every_rank_at_once() {
    let test = a_rank_that_calls_another_collective_is_named_on_every_rank_at_once;
    on_ranks(test, &[3]).iter().for_each(|world| breaks(world, Fault::Collective));
}

#[test]
fn a_rank_that_panics_in_its_step_is_named_on_every_rank_at_once() {
    let test = a_rank_that_panics_in_its_step_is_named_on_every_rank_at_once;
    on_ranks(test, &[3]).iter().for_each(|world| breaks(world, Fault::Panic));
}
