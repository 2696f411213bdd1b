//! `DistOpt` over groups other than the world: an all-reduce by hosts, and groups side by side.

use candelabrum::dist::{Group, Mesh, parameters_sha256};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{assert_close, uniform};

use crate::ranks::{on_ranks, world_of_rank};

const STEPS: u64 = 6;

/// Trains a small model on data that depends on `salt`. Returns its parameters.
fn train(group: impl Into<Group>, salt: u64, option: DistOption) -> Params {
    let params = Params::new(3);
    let hidden = Linear::new(&params.root().pp("hidden"), 20).activation(Activation::Tanh);
    let out = Linear::new(&params.root().pp("out"), 4);
    let forward = |xs: &Tensor| out.forward(&hidden.forward(xs).unwrap()).unwrap();
    let xs = |step: u64| uniform((6, 8), 100 * step + salt, -1.0, 1.0, DType::F32).unwrap();
    forward(&xs(0));
    let config = DistOptConfig { first_bucket_bytes: 1, bucket_bytes: 400, ..Default::default() };
    let sgd = Sgd::new(0.1).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, group, config).unwrap();
    for step in 0..STEPS {
        let loss = forward(&xs(step)).sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update_with(&loss, option, 0.2).unwrap();
    }
    opt.average_parameters().unwrap();
    params
}

/// Not a test: the program of a rank.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    let rank = world.rank() as u64;
    // Ranks 0 and 2 are on one host, 1 and 3 on another, 4 is alone on a third.
    let hosts = [0, 1, 0, 1, 2];
    let layered =
        world.comm().hierarchical(&Mesh::new(hosts[..world.world_size()].to_vec())).unwrap();
    for option in DistOption::ALL {
        let plain = train(&world, rank, option);
        let by_hosts = train(layered.clone(), rank, option);
        let digests = layered.all_gather_text(&parameters_sha256(&by_hosts).unwrap()).unwrap();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{option}: {digests:?}");
        // Only the order of additions differs, but half precision also rounds each host's sum.
        let tolerance =
            if matches!(option, DistOption::Fp16 | DistOption::Bf16) { 0.02 } else { 1e-5 };
        for (a, b) in plain.list().iter().zip(by_hosts.list()) {
            assert_close(a.tensor(), b.tensor(), tolerance, tolerance);
        }
    }
    // Two groups train side by side, each on its own data.
    let half = world.split(Some(rank % 2), rank as i64).unwrap().unwrap();
    let apart = train(half.clone(), rank, DistOption::Fp32);
    let own = parameters_sha256(&apart).unwrap();
    let digests = half.all_gather_text(&own).unwrap();
    assert!(digests.iter().all(|digest| *digest == own));
    println!("half {} {own}", rank % 2);
}

#[test]
fn a_group_trains_like_a_world_and_beside_other_groups() {
    for ranks in [4, 5] {
        let outputs = RanksOf::new(rank_main).env("CANDELABRUM_TIMEOUT", 30).run_all_good(ranks);
        let digest = |half: usize| {
            let text = &outputs[half].text;
            let found = text.split(&format!("half {half} ")).nth(1).unwrap();
            found.split_whitespace().next().unwrap().to_owned()
        };
        assert_ne!(digest(0), digest(1), "the groups had different data");
    }
}

#[test]
fn ranks_of_hosts_that_take_other_steps_disagree_at_once() {
    for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 1], &[0, 0, 1, 1]] {
        for number in 0..6 {
            let shard = if number % 2 == 0 { Shard::None } else { Shard::Optimizer };
            let (joins, option) = match number {
                0 | 1 => (true, DistOption::Fp32),
                2 | 3 => (false, DistOption::Fp32),
                _ => (true, DistOption::SparseTopK),
            };
            let errors = on_ranks(hosts.len(), |world| {
                let params = Params::new(3);
                let line = Linear::new(&params.root(), 4);
                let xs = uniform((6, 8), 1, -1.0, 1.0, DType::F32).unwrap();
                let loss = || line.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
                loss();
                let group = world.comm().hierarchical(&Mesh::new(hosts.to_vec())).unwrap();
                let config = DistOptConfig { uneven: true, shard, ..DistOptConfig::default() };
                let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, group, config).unwrap();
                opt.backward_and_update_with(&loss(), option, 0.05).unwrap();
                let is_last = world.rank() + 1 == hosts.len();
                let result = match is_last {
                    true if joins => opt.join(option, 0.1).map(drop),
                    true => opt.backward_and_update_with(&loss(), option, 0.1),
                    false => opt.backward_and_update_with(&loss(), option, 0.05),
                };
                result.unwrap_err().to_string()
            });
            for error in &errors {
                let of = format!("{hosts:?}, {shard}, {joins}, {option}");
                assert!(!error.contains("waited"), "{of}: {error}");
                assert!(error.contains("same dist option and spars"), "{of}: {error}");
            }
        }
    }
}
