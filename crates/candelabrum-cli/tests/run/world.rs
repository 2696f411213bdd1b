//! Ranks that join a world: this test program is their program.

use std::env;

use candelabrum_dist::World;
use candelabrum_dist::comm::ReduceOp;

use crate::program::run;

/// What a rank does. It returns at once where the test is no rank.
#[test]
fn rank_main() {
    if env::var_os("CANDELABRUM_RANK").is_none() {
        return;
    }
    let world = World::from_env().unwrap();
    let mut sum = [10_f32.powi(world.rank().try_into().unwrap())];
    world.comm().all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    println!("{} ranks, sum {}", world.world_size(), sum[0]);
}

#[test]
fn ranks_find_each_other() {
    let program = env::current_exe().unwrap();
    let arguments = ["world::rank_main", "--exact", "--nocapture"];
    let run = run(["-n", "3", "--prefix", "none"]).program(program).arguments(arguments);
    let ended = run.finish().expect(0);
    assert_eq!(ended.out.matches("3 ranks, sum 111\n").count(), 3, "{ended:#?}");
}
