//! Ranks that divide the optimizer's state, and gradients too, train as ranks that have all: the same bits, a part of the
//! memory, the same bytes between ranks. So do hosts that each have a copy of all shards (PyTorch's HSDP). A rank that dies
//! in any phase of the exchange ends all of them.

use std::sync::Arc;
use std::time::Duration;

use candelabrum::candle::{self, CpuStorage, CustomOp1, Layout, Shape};
use candelabrum::dist::{Group, LossScale, Mesh, OnOverflow};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{Backend, RanksOf};
use candelabrum_testkit::{runs_all, uniform};

use crate::ranks::{on_processes, on_ranks, world_of_rank};
use crate::shards::{Dying, Mlp, PAUSE, Training, WIDTH, bits};

#[test]
fn rank_compares() {
    let Some(world) = world_of_rank() else { return };
    let ranks = world.group();
    compare(&ranks, &ranks);
    if world.world_size() == 4 {
        // Two neighbours on each host, or two that are not.
        for hosts in [[0, 0, 1, 1], [0, 1, 0, 1]] {
            let ranks = world.comm().hierarchical(&Mesh::new(hosts.to_vec())).unwrap();
            compare(&ranks, &ranks.replica().unwrap());
        }
    }
}

/// Trains with shards of the `replica` that this rank belongs to, and without. What the law draws is not here: few steps in
/// f32, their clipping, micro-batches and optimizers.
fn compare(ranks: &Group, replica: &Group) {
    let adamw = || AdamW::new(1e-3).weight_decay(0.1).into();
    let no_clip = DistOptConfig { first_bucket_bytes: 1 << 10, ..DistOptConfig::default() };
    // Buckets that are lent.
    let small = DistOptConfig { clip_gradients: Some(Clip::Norm(0.1)), ..no_clip.clone() };
    let scale = LossScale::Dynamic { initial: 1024.0, interval: 2 };
    // Nothing is clipped, so ranks update before they know, and undo.
    let skip =
        DistOptConfig { on_overflow: OnOverflow::Skip, bucket_bytes: 1 << 14, ..no_clip.clone() };
    let few = Training {
        ranks,
        dtype: DType::F32,
        recipe: adamw(),
        option: DistOption::Fp32,
        config: small.clone(),
        steps: 6,
        bad: &[],
        overflows: false,
    };
    let of_option = |option| Training { recipe: adamw(), config: small.clone(), option, ..few };
    let each = [
        Training { steps: if runs_all() { 200 } else { 40 }, ..of_option(DistOption::Fp32) },
        of_option(DistOption::Fp16),
        of_option(DistOption::Bf16),
        of_option(DistOption::SparseTopK),
        Training { dtype: DType::BF16, ..of_option(DistOption::Fp32) },
        Training {
            recipe: Sgd::new(0.1).momentum(0.9).into(),
            config: skip,
            steps: 24,
            overflows: true,
            ..of_option(DistOption::Fp16)
        },
        Training {
            config: DistOptConfig { loss_scale: scale, ..small.clone() },
            dtype: DType::F16,
            ..of_option(DistOption::Fp32)
        },
        // Updates that are undone.
        Training { config: no_clip, bad: &[1, 3], ..of_option(DistOption::Fp32) },
        Training { bad: &[0, 2], ..of_option(DistOption::Fp32) },
    ];
    for (number, training) in each.iter().enumerate() {
        let whole = training.run(Shard::None);
        for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
            // What it chooses depends on the buckets, which blocks divide.
            if training.option == DistOption::SparseTopK && shard == Shard::Parameters {
                continue;
            }
            let shared = training.run(shard);
            let case = format!(
                "training {number}, {shard}, {} of {}",
                replica.world_size(),
                ranks.world_size()
            );
            assert!(shared.bits == whole.bits, "{case}: other bits");
            assert_eq!(shared.ends, whole.ends, "{case}");
            // The ranks of a replica have everything once.
            let all = replica.all_gather(&[shared.bytes as i64]).unwrap();
            assert_eq!(all.iter().sum::<i64>(), whole.bytes as i64, "{case}");
            // A cut is at a place of norms.
            let (part, cut) = (whole.bytes / replica.world_size(), 8 * WIDTH * WIDTH);
            assert!(
                shared.bytes.abs_diff(part) <= cut,
                "{case}: {} of {}",
                shared.bytes,
                whole.bytes
            );
            assert!(shared.bytes < whole.bytes, "{case}");
            // The last layer is no block, and f16 and bf16 have masters.
            let most = match (shard, training.dtype) {
                (Shard::Parameters, _) => whole.of_parameters / 2 + cut,
                (_, DType::F32) => whole.of_parameters,
                _ => whole.of_parameters * 2 / 3 + cut,
            };
            assert!(shared.of_parameters <= most, "{case}: {} of {most}", shared.of_parameters);
            if number == 0 {
                println!("{shard}: {} bytes sent, {} without", shared.sent, whole.sent);
            }
        }
    }
}

#[test]
fn shards_and_copies_of_them_on_hosts_change_no_bit() {
    for (backend, ranks) in
        [(Backend::Local, 2), (Backend::Tcp, 3), (Backend::Local, 4), (Backend::Tcp, 4)]
    {
        RanksOf::new(rank_compares).over(backend).run_all_good(ranks);
    }
    for ranks in [3, 4].into_iter().filter(|_| cfg!(feature = "mpi")) {
        let ended = RanksOf::new(rank_compares).run_under_mpiexec(ranks);
        ended.into_iter().for_each(|ended| assert!(ended.succeeded(), "{ended:#?}"));
    }
}

#[test]
fn a_share_is_an_even_part_and_no_number_travels_twice() {
    let test = RanksOf::new(a_share_is_an_even_part_and_no_number_travels_twice);
    let Some(world) = on_processes(test, &[2, 4]) else { return };
    // With the parts of a vector, and whether hosts exchange one of them.
    let mut each = vec![(world.group(), world.world_size(), false)];
    if world.world_size() == 4 {
        let uneven = world.comm().hierarchical(&Mesh::new(vec![0, 0, 0, 1])).unwrap();
        assert!(uneven.replica().is_none(), "one rank alone has no copy of all shards");
        assert!(world.comm().replica().is_none(), "a world is not divided into hosts");
        each.push((world.comm().hierarchical(&Mesh::new(vec![0, 0, 1, 1])).unwrap(), 2, true));
        each.push((uneven, 4, false));
    }
    for (ranks, parts, has_copies) in each {
        let params = Params::new(1);
        let model = Mlp::new(&params, &[1000, 1000, 700]);
        let xs = Tensor::ones((1, 1000), DType::F32, &Device::Cpu).unwrap();
        model.compile_with(&params, &xs).unwrap();
        let config = DistOptConfig { shard: Shard::Optimizer, ..DistOptConfig::default() };
        let mut opt = DistOpt::with_config(AdamW::new(1e-3), &params, ranks, config).unwrap();
        let loss = model.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        let before = opt.traffic();
        opt.backward_and_update(&loss).unwrap();
        // Waits for new values that are still on their way.
        let shard = opt.optimizer_bytes().unwrap();
        let moved = opt.traffic() - before;
        let elements: usize = params.list().iter().map(|param| param.var().elem_count()).sum();
        let (all, case) = (8 * elements, format!("{parts} parts: {shard} bytes, {moved:?}"));
        assert!(shard as f64 <= all as f64 * (1.0 / parts as f64 + 0.02), "{all}, {case}");
        // All gradients and this rank's new values leave, with the part of the gradients between hosts. As many numbers arrive.
        let (whole, own) = (4 * elements as u64, shard as u64 / 2);
        let between = if has_copies { own } else { 0 };
        // Before the step the ranks have compared digests.
        let other = 2 << 10;
        assert!(moved.bytes_sent.abs_diff(whole + between + own) < other, "{case}");
        assert!(moved.bytes_received.abs_diff(whole + between) < other, "{case}");
        let figures = opt.figures(DistOption::Fp32);
        assert!(figures.bytes_sent.abs_diff(moved.bytes_sent) < other, "{figures:?}, {case}");
        assert!(figures.bytes_received.abs_diff(moved.bytes_received) < other, "{figures:?}");
    }
}

/// The identity, with another backward pass.
struct Backward<F>(F);

impl<F: Fn(&Tensor) -> candle::Result<Tensor> + Send + Sync> CustomOp1 for Backward<F> {
    fn name(&self) -> &'static str {
        "backward"
    }
    fn cpu_fwd(&self, xs: &CpuStorage, layout: &Layout) -> candle::Result<(CpuStorage, Shape)> {
        Ok((xs.clone(), layout.shape().clone()))
    }
    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle::Result<Option<Tensor>> {
        (self.0)(gradient).map(Some)
    }
}

#[test]
fn rank_dies() {
    let Some(world) = world_of_rank() else { return };
    let phase = std::env::var("SHARDED_PHASE").ok();
    let shard = std::env::var("SHARDED_WHAT").unwrap().parse().unwrap();
    let params = Params::new(1);
    let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
    let xs = Tensor::ones((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
    model.compile_with(&params, &xs).unwrap();
    let config = DistOptConfig { shard, first_bucket_bytes: 1 << 10, ..DistOptConfig::default() };
    let dying = Dying { phase: phase.clone(), ..Dying::new(AdamW::new(1e-3)) };
    let mut opt = DistOpt::with_config(dying, &params, &world, config).unwrap();
    for step in 0..4 {
        if step == 2 && phase.as_deref() == Some("forward") {
            std::process::abort();
        }
        let second = Arc::clone(&model.blocks[1]);
        let is_deadly = step == 2 && phase.as_deref() == Some("backward");
        let ys = model.blocks.forward_by(&xs, move |layer, xs| {
            let ys = layer.forward(xs)?.relu()?;
            // The buckets of the layers after it have left by then.
            if is_deadly && std::ptr::eq(layer, &*second) {
                ys.apply_op1(Backward(|_: &Tensor| std::process::abort()))
            } else {
                Ok(ys)
            }
        });
        let ys = ys.and_then(|ys| model.last.forward(&ys));
        let ys = ys.unwrap_or_else(|error| {
            println!("step {step}: {error}");
            std::process::exit(3);
        });
        let loss = ys.sqr().unwrap().mean_all().unwrap();
        if let Err(error) = opt.backward_and_update(&loss) {
            println!("step {step}: {error}");
            std::process::exit(3);
        }
    }
}

#[test]
fn a_rank_that_dies_in_any_phase_ends_all() {
    for phase in ["forward", "backward", "updates", "gathers"] {
        for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
            let ranks = RanksOf::new(rank_dies).env("SHARDED_WHAT", shard.to_string());
            let ended = ranks.env_of(1, "SHARDED_PHASE", phase).run(3);
            for rank in [0, 2] {
                let text = &ended[rank].text;
                let of = format!("{shard}, {phase}, rank {rank}");
                assert!(text.contains("rank 1"), "{of}: it does not name the rank: {text}");
                assert!(text.contains("step 2") || text.contains("step 3"), "{of}: {text}");
                assert!(!ended[rank].succeeded(), "{of} has succeeded");
            }
        }
    }
}

#[test]
fn a_step_may_end_before_the_new_values_of_other_ranks_have_come() {
    let Some(world) = on_processes(
        RanksOf::new(a_step_may_end_before_the_new_values_of_other_ranks_have_come)
            .over(Backend::Tcp),
        &[2],
    ) else {
        return;
    };
    let params = Params::new(1);
    let model = Mlp::new(&params, &[WIDTH, 5]);
    let xs = Tensor::ones((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
    model.compile_with(&params, &xs).unwrap();
    let gate = (!world.is_root()).then(|| world.group());
    let waiting = Dying { gate, ..Dying::new(AdamW::new(1e-3)) };
    let (shard, overlap_forward) = (Shard::Optimizer, true);
    let config = DistOptConfig { shard, overlap_forward, ..DistOptConfig::default() };
    let mut opt = DistOpt::with_config(waiting, &params, &world, config).unwrap();
    for step in 0..3 {
        let loss = model.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update(&loss).unwrap();
        if world.is_root() {
            // Only now the other rank comes to the gathering of new values.
            world.comm().send(&[step], 1).unwrap();
        }
    }
}

#[test]
fn what_a_rank_undoes_no_other_rank_has_read() {
    let Some(world) = on_processes(
        RanksOf::new(what_a_rank_undoes_no_other_rank_has_read).over(Backend::Tcp),
        &[2],
    ) else {
        return;
    };
    let train = |shard: Shard| {
        let params = Params::new(1);
        let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
        let xs = uniform((2, WIDTH), 4 + world.rank() as u64, -1.0, 1.0, DType::F32).unwrap();
        model.compile_with(&params, &xs).unwrap();
        let config = DistOptConfig {
            shard,
            first_bucket_bytes: 1 << 10,
            bucket_bytes: 1 << 10,
            on_overflow: OnOverflow::Skip,
            ..DistOptConfig::default()
        };
        let undoes_late = !world.is_root();
        let opt = Dying { undoes_late, ..Dying::new(AdamW::new(1e-2)) };
        let mut opt = DistOpt::with_config(opt, &params, &world, config).unwrap();
        for step in 0..4 {
            let (second, overflows) = (Arc::clone(&model.blocks[1]), step == 1);
            let pause = if overflows && world.is_root() { PAUSE } else { Duration::ZERO };
            let ys = model.blocks.forward_by(&xs, move |layer, xs| {
                // The gradients of the first block are the last to leave, and too large for f16. The other rank has
                // updated the others by then.
                let is_chosen = overflows && std::ptr::eq(layer, &*second);
                let slow = move |gradient: &Tensor| {
                    std::thread::sleep(pause);
                    gradient * 1e12
                };
                let xs = if is_chosen { xs.apply_op1(Backward(slow))? } else { xs.clone() };
                layer.forward(&xs)?.relu()
            });
            let loss = model.last.forward(&ys.unwrap()).unwrap().sqr().unwrap().mean_all().unwrap();
            opt.backward_and_update_with(&loss, DistOption::Fp16, 0.0).unwrap();
        }
        let figures = opt.figures(DistOption::Fp16);
        assert_eq!(figures.skipped, 1);
        println!("{shard}: {} early updates", figures.early_updates);
        bits(&params)
    };
    let whole = train(Shard::None);
    assert!(train(Shard::Parameters) == whole, "a rank has read what another one has undone");
}

#[test]
fn a_rank_that_never_has_a_batch_gathers_with_the_others() {
    for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
        let bits = on_ranks(3, |world| {
            let params = Params::new(1);
            let model = Mlp::new(&params, &[WIDTH, WIDTH, 5]);
            let xs = Tensor::ones((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
            model.compile_with(&params, &xs).unwrap();
            let config = DistOptConfig {
                shard,
                uneven: true,
                first_bucket_bytes: 1 << 10,
                bucket_bytes: 1 << 12,
                ..DistOptConfig::default()
            };
            let opt = DistOpt::with_config(AdamW::new(1e-3), &params, world, config);
            let mut opt = opt.unwrap();
            for _ in 0..if world.is_root() { 3 } else { 0 } {
                let loss = model.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
                opt.backward_and_update(&loss).unwrap();
            }
            opt.join(DistOption::Fp32, 0.0).unwrap();
            bits(&params)
        });
        assert!(bits.iter().all(|other| *other == bits[0]), "{shard}");
    }
}

#[test]
fn a_model_whose_layers_are_used_in_another_order_hears_that_sharing_gradients_saves_nothing() {
    for reversed in [false, true] {
        let notes = on_ranks(2, |world| {
            let params = Params::new(1);
            let scope = params.root();
            let mut layers: Vec<Linear> =
                (0..24).map(|number| Linear::new(&scope.pp(number), 40)).collect();
            let xs = Tensor::ones((1, 40), DType::F32, &Device::Cpu).unwrap();
            // They are created now, each at its first call.
            layers.iter().for_each(|layer| drop(layer.forward(&xs).unwrap()));
            if reversed {
                layers.reverse();
            }
            let config = DistOptConfig {
                shard: Shard::Gradients,
                first_bucket_bytes: 1 << 12,
                bucket_bytes: 1 << 12,
                ..DistOptConfig::default()
            };
            let opt = DistOpt::with_config(AdamW::new(1e-3), &params, world, config);
            let mut opt = opt.unwrap();
            for _ in 0..4 {
                let ys = layers.iter().fold(xs.clone(), |xs, layer| layer.forward(&xs).unwrap());
                opt.backward_and_update(&ys.sqr().unwrap().mean_all().unwrap()).unwrap();
            }
            opt.take_notes()
        });
        let said = notes[0].iter().filter(|note| note.contains("saves no memory")).count();
        assert_eq!(said, usize::from(reversed), "{notes:?}");
    }
}

#[test]
fn after_an_average_of_parameters_that_has_failed_none_is_taken_for_good() {
    on_ranks(2, |world| {
        let params = Params::new(1);
        let model = Mlp::new(&params, &[WIDTH, 5]);
        let xs = Tensor::ones((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
        model.compile_with(&params, &xs).unwrap();
        let mut opt = DistOpt::new(Sgd::new(0.1), &params, world).unwrap();
        let loss = model.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update_with(&loss, DistOption::PartialUpdate, 0.0).unwrap();
        if !world.is_root() {
            world.abort("this rank fails");
            return;
        }
        assert!(opt.average_parameters().is_err());
        for param in params.list() {
            let error = param.with_values(|_| Ok(())).unwrap_err().to_string();
            assert!(error.contains("this rank fails"), "{error}");
        }
    });
}

#[test]
fn an_average_of_parameters_is_refused() {
    let params = Params::new(1);
    let model = Mlp::new(&params, &[2]);
    model.compile_with(&params, &Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap()).unwrap();
    let config = DistOptConfig { shard: Shard::Optimizer, ..DistOptConfig::default() };
    let opt = DistOpt::with_config(Sgd::new(0.1), &params, &World::single(), config).unwrap();
    let error = opt.check(DistOption::PartialUpdate, 0.0).unwrap_err().to_string();
    assert!(error.contains("shard") && error.contains("averages parameters"), "{error}");
    opt.check(DistOption::SparseTopK, 0.1).unwrap();
}
