//! `DistOpt` over groups other than the world: an all-reduce by hosts, and groups side by side.

use candelabrum::dist::{Group, parameters_sha256};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::{assert_close, uniform};

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
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let rank = world.rank() as u64;
    // Ranks 0 and 2 are on one host, 1 and 3 on another, 4 is alone on a third.
    let hosts = [0, 1, 0, 1, 2];
    let layered = world.comm().hierarchical(&hosts[..world.world_size()]).unwrap();
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
        let outputs = RanksOf::of(rank_main).env("CANDELABRUM_TIMEOUT", 30).run_all_good(ranks);
        let digest = |half: usize| {
            let text = &outputs[half].text;
            let found = text.split(&format!("half {half} ")).nth(1).unwrap();
            found.split_whitespace().next().unwrap().to_owned()
        };
        assert_ne!(digest(0), digest(1), "the groups had different data");
    }
}
