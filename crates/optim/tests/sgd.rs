//! Twenty steps against `torch.optim.SGD` (`scripts/golden.py` wrote the values).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use candelabrum_optim::{Optimizer, Sgd};
use candelabrum_testkit::{assert_close, golden};
use candle_core::{Device, Tensor};

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn check(golden: &BTreeMap<String, Tensor>, name: &str, mut sgd: Sgd) {
    let mut params: Vec<Vec<f32>> =
        (0..3).map(|i| values(&golden[&format!("initial.param{i}")])).collect();
    sgd.bind(&params.iter().map(Vec::len).collect::<Vec<_>>()).unwrap();
    for step in 1..=20 {
        for (i, param) in params.iter_mut().enumerate() {
            let grad = values(&golden[&format!("grad.param{i}.step{step}")]);
            sgd.update(i, param, &grad).unwrap();
        }
        sgd.step();
        if step % 5 != 0 {
            continue;
        }
        for (i, param) in params.iter().enumerate() {
            let expected = &golden[&format!("{name}.param{i}.step{step}")];
            let actual = Tensor::new(&param[..], &Device::Cpu).unwrap();
            let actual = actual.reshape(expected.shape()).unwrap();
            // Values are of order 1; one that has come close to 0 keeps their absolute precision.
            assert_close(&actual, expected, 1e-6, 1e-6);
        }
    }
}

#[test]
fn every_variant_steps_as_pytorchs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sgd.safetensors");
    let golden = golden(path);
    let metadata = candelabrum_testkit::golden_metadata(path);
    let mut cases: Vec<&str> = golden
        .keys()
        .filter_map(|key| key.split_once(".param").map(|(case, _)| case))
        .filter(|case| !["initial", "grad"].contains(case))
        .collect();
    cases.dedup();
    assert!(cases.len() >= 6, "{cases:?}");
    for case in cases {
        println!("{case}: {}", metadata[case]);
        check(&golden, case, from_options(&metadata[case]));
    }
}

/// The optimizer that PyTorch's options, as JSON, describe.
fn from_options(json: &str) -> Sgd {
    let number = |name: &str| -> f32 {
        let Some((_, rest)) = json.split_once(&format!("\"{name}\":")) else { return 0.0 };
        let end = rest.find([',', '}']).unwrap();
        rest[..end].trim().parse().unwrap()
    };
    let sgd = Sgd::new(number("lr"))
        .momentum(number("momentum"))
        .dampening(number("dampening"))
        .weight_decay(number("weight_decay"));
    if json.contains("\"nesterov\": true") { sgd.nesterov() } else { sgd }
}
