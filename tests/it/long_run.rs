//! A long run needs no more memory than a short one.

#![cfg(target_os = "linux")]

use std::time::Duration;

use candelabrum::prelude::*;
use candelabrum_testkit::memory::resident_bytes;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::uniform;

use crate::ranks::on_processes;

const FIRST: usize = 1_000;
const STEPS: usize = 10_000;

#[test]
fn a_clip_limit_that_changes_at_each_step_needs_no_memory() {
    let Some(world) = on_processes(
        RanksOf::new(a_clip_limit_that_changes_at_each_step_needs_no_memory)
            .limit(Duration::from_secs(120)),
        &[2],
    ) else {
        return;
    };
    let params = Params::new(0);
    let layer = Linear::new(&params.root().pp("layer"), 64);
    let xs = uniform((2, 64), 1, -1.0, 1.0, DType::F32).unwrap();
    layer.forward(&xs).unwrap();
    let mut opt = DistOpt::new(Sgd::new(1e-4).momentum(0.9), &params, &world).unwrap();
    let mut after_first = 0;
    for step in 0..STEPS {
        let loss = layer.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update_half(&loss, Some(1.0 + step as f32)).unwrap();
        if step + 1 == FIRST {
            after_first = resident_bytes() / 1024;
        }
    }
    let at_the_end = resident_bytes() / 1024;
    println!("{after_first} KiB after {FIRST} steps, {at_the_end} KiB after {STEPS}");
    assert!(at_the_end as f64 <= 1.05 * after_first as f64, "{after_first} KiB, {at_the_end} KiB");
}
