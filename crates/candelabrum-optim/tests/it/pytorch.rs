//! Fifty steps of every optimizer, sixty rates of every schedule, and clipping, compared with
//! PyTorch. `scripts/golden` wrote the values and documents the inputs.

use std::collections::{BTreeMap, BTreeSet};

use candelabrum_memory::SpanMut;
use candelabrum_optim::{
    AdaGrad, Adafactor, AdamRule, AdamW8bit, Anneal, Clip, Lamb, Lars, Muon, MuonScale, OneCycle,
    Optimizer, ParamGroup, ParamInfo, RmsProp, RuleOptimizer, Schedule, Sgd, UpdateRule, clip,
};
use candelabrum_testkit::{golden, uniform};
use candle_core::{DType, Tensor};

const SHAPES: &[&[usize]] = &[&[1], &[7], &[3, 11]];
/// For optimizers that treat matrices otherwise.
const MATRICES: &[&[usize]] = &[&[7], &[3, 11], &[12, 5], &[2, 3, 4]];
/// For averages in blocks of 256 elements.
const BLOCKS: &[&[usize]] = &[&[7], &[3, 11], &[30, 20]];
const NAMES: [&str; 4] = ["param0", "param1", "param2", "param3"];
const STEPS: u64 = 50;

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn numbers(dims: &[usize], seed: u64, bound: f64) -> Vec<f32> {
    values(&uniform(dims, seed, -bound, bound, DType::F32).unwrap())
}

fn file(name: &str) -> BTreeMap<String, Tensor> {
    golden(format!("{}/tests/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR")))
}

/// The largest difference, relative to the largest magnitude of a tensor of `expected`.
fn difference(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let differences = actual.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b));
    let worst = differences.fold(0.0, |max: f64, x| if x.is_nan() { x } else { max.max(x.abs()) });
    worst / f64::from(largest)
}

/// Takes the steps of the golden script. Returns the largest relative difference.
fn run(
    golden: &BTreeMap<String, Tensor>,
    case: &str,
    optimizer: &mut dyn Optimizer,
    shapes: &[&[usize]],
    tolerance: f64,
) -> f64 {
    let infos: Vec<_> =
        NAMES.iter().zip(shapes).map(|(name, dims)| ParamInfo::on_host(name, dims)).collect();
    optimizer.bind(&infos).unwrap();
    let mut params: Vec<Vec<f32>> =
        shapes.iter().zip(5000..).map(|(dims, seed)| numbers(dims, seed, 1.0)).collect();
    let (mut worst, mut compared) = (0.0_f64, 0);
    for step in 1..=STEPS {
        // In reversed order, because updates may come in any order.
        for (j, param) in params.iter_mut().enumerate().rev() {
            let gradient = numbers(shapes[j], 6000 + 10 * step + j as u64, 1.0);
            optimizer.update(j, param.into(), (&gradient).into()).unwrap();
        }
        optimizer.step();
        for (j, param) in params.iter().enumerate() {
            let Some(expected) = golden.get(&format!("{case}.param{j}.step{step}")) else {
                continue;
            };
            let difference = difference(param, &values(expected));
            assert!(
                difference <= tolerance,
                "{}, case {case}, parameter {j}, step {step}: {difference:e}",
                optimizer.describe()
            );
            (worst, compared) = (worst.max(difference), compared + 1);
        }
    }
    assert_eq!(compared, 4 * shapes.len(), "{case}");
    worst
}

/// Compares every case of the file `name`. `cases` has the optimizers.
fn check<R: UpdateRule>(name: &str, cases: Vec<(&str, RuleOptimizer<R>)>) {
    check_shapes(name, SHAPES, cases.into_iter().map(|(case, it)| (case, it, 1e-6)).collect());
}

/// The same for parameters of these shapes, each case with its tolerance.
fn check_shapes<R: UpdateRule>(
    name: &str,
    shapes: &[&[usize]],
    cases: Vec<(&str, RuleOptimizer<R>, f64)>,
) {
    let golden = file(name);
    let stored: BTreeSet<_> =
        golden.keys().filter_map(|key| key.split_once(".param")).map(|(case, _)| case).collect();
    assert_eq!(stored, cases.iter().map(|(case, ..)| *case).collect());
    for (case, mut optimizer, tolerance) in cases {
        let worst = run(&golden, case, &mut optimizer, shapes, tolerance);
        println!("{name} {case}: {worst:.1e}");
    }
}

fn cosine(lr: f64) -> Schedule {
    Schedule::Cosine { lr, steps: STEPS, min: 0.0 }
}

/// The golden script's `VECTORS`.
fn vectors() -> ParamGroup {
    ParamGroup::below_dims(2).weight_decay(0.0).lr_scale(2.0)
}

#[test]
fn sgd_steps_as_pytorchs() {
    let plain = || Sgd::new(0.1);
    let momentum = || plain().momentum(0.9);
    let dampening = || momentum().dampening(0.1);
    let nesterov = || momentum().nesterov();
    let scheduled = || Sgd::new(cosine(0.1)).momentum(0.9);
    check(
        "sgd",
        vec![
            ("plain", plain()),
            ("momentum", momentum()),
            ("momentum_dampening", dampening()),
            ("momentum_nesterov", nesterov()),
            ("weight_decay", plain().weight_decay(0.01)),
            ("momentum_weight_decay", momentum().weight_decay(0.01)),
            ("momentum_dampening_weight_decay", dampening().weight_decay(0.01)),
            ("momentum_nesterov_weight_decay", nesterov().weight_decay(0.01)),
            ("momentum_schedule", scheduled()),
            ("momentum_groups_schedule", scheduled().weight_decay(0.01).group(vectors())),
        ],
    );
}

/// The cases of Adam and of AdamW.
fn adams<const DECOUPLED: bool>(name: &str) {
    let plain = || RuleOptimizer::<AdamRule<DECOUPLED>>::new(0.01);
    let scheduled = || RuleOptimizer::<AdamRule<DECOUPLED>>::new(cosine(0.01));
    check(
        name,
        vec![
            ("plain", plain()),
            ("weight_decay", plain().weight_decay(0.1)),
            ("betas_eps", plain().betas(0.8, 0.95).eps(1e-3)),
            ("beta1_0", plain().betas(0.0, 0.9)),
            ("betas_0", plain().betas(0.0, 0.0)),
            ("beta1_below_half", plain().betas(0.3, 0.9)),
            ("amsgrad", plain().amsgrad().betas(0.9, 0.9)),
            ("amsgrad_weight_decay", plain().amsgrad().weight_decay(0.1)),
            ("schedule", scheduled()),
            ("groups_schedule", scheduled().weight_decay(0.1).group(vectors())),
        ],
    );
}

#[test]
fn adam_steps_as_pytorchs() {
    adams::<false>("adam");
}

#[test]
fn adamw_steps_as_pytorchs() {
    adams::<true>("adamw");
}

#[test]
fn rms_prop_steps_as_pytorchs() {
    let plain = || RmsProp::new(0.01);
    let centered = || plain().centered();
    check(
        "rms_prop",
        vec![
            ("plain", plain()),
            ("weight_decay", plain().weight_decay(0.1)),
            ("alpha_eps", plain().alpha(0.9).eps(1e-3)),
            ("momentum", plain().momentum(0.9)),
            ("centered", centered()),
            ("centered_alpha", centered().alpha(0.3).eps(1e-3)),
            ("centered_momentum_weight_decay", centered().momentum(0.5).weight_decay(0.1)),
            ("groups_schedule", RmsProp::new(cosine(0.01)).weight_decay(0.1).group(vectors())),
        ],
    );
}

#[test]
fn ada_grad_steps_as_pytorchs() {
    let plain = || AdaGrad::new(0.01);
    check(
        "ada_grad",
        vec![
            ("plain", plain()),
            ("weight_decay", plain().weight_decay(0.1)),
            ("lr_decay", plain().lr_decay(0.05)),
            ("initial_accumulator", plain().initial_accumulator(0.5).eps(1e-3)),
            ("groups_schedule", AdaGrad::new(cosine(0.01)).weight_decay(0.1).group(vectors())),
        ],
    );
}

#[test]
fn lamb_steps_as_the_paper_says() {
    let plain = || Lamb::new(0.01);
    check(
        "lamb",
        vec![
            ("plain", plain()),
            ("no_weight_decay", plain().weight_decay(0.0)),
            ("betas_eps", plain().betas(0.8, 0.95).eps(1e-3)),
            ("beta1_0", plain().betas(0.0, 0.9)),
            ("betas_0", plain().betas(0.0, 0.0)),
            ("groups_schedule", Lamb::new(cosine(0.01)).weight_decay(0.1).group(vectors())),
        ],
    );
}

#[test]
fn lars_steps_as_the_paper_says() {
    let plain = || Lars::new(1.0);
    check(
        "lars",
        vec![
            ("plain", plain()),
            ("no_momentum", plain().momentum(0.0)),
            ("trust_coefficient", plain().trust_coefficient(0.02).weight_decay(0.1)),
            ("groups_schedule", Lars::new(cosine(1.0)).weight_decay(0.1).group(vectors())),
        ],
    );
}

#[test]
fn muon_steps_as_pytorchs() {
    let plain = || Muon::new(0.01);
    let scheduled = Muon::new(cosine(0.01)).group(vectors());
    let match_rms = plain().scale(MuonScale::MatchRmsAdamW).weight_decay(0.0);
    let coefficients = plain().coefficients([2.0, -1.5, 0.5]).iterations(12).eps(1e-3);
    check_shapes(
        "muon",
        MATRICES,
        vec![
            ("plain", plain(), 1e-6),
            ("without_nesterov", plain().nesterov(false).momentum(0.8), 1e-6),
            ("match_rms", match_rms, 1e-6),
            ("coefficients", coefficients, 1e-6),
            ("groups_schedule", scheduled, 1e-6),
            // PyTorch's own iteration, whose products are rounded to 8 bits.
            ("bf16", plain(), 5e-3),
        ],
    );
}

#[test]
fn adafactor_steps_as_pytorchs() {
    let plain = || Adafactor::new(0.3);
    let scheduled = Adafactor::new(cosine(0.3)).weight_decay(0.1).group(vectors());
    check_shapes(
        "adafactor",
        MATRICES,
        vec![
            ("plain", plain(), 1e-6),
            ("weight_decay", plain().weight_decay(0.1), 1e-6),
            ("betas_eps", plain().beta2_decay(-0.5).eps(1e-3, 1e-2), 1e-6),
            ("clipping", plain().clipping_threshold(1.5), 1e-6),
            ("groups_schedule", scheduled, 1e-6),
        ],
    );
}

#[test]
fn adamw_8bit_steps_as_the_paper_says() {
    let plain = || AdamW8bit::new(0.01).min_8bit_size(0);
    let scheduled = AdamW8bit::new(cosine(0.01)).min_8bit_size(0).weight_decay(0.1);
    check_shapes(
        "adamw_8bit",
        BLOCKS,
        vec![
            ("plain", plain(), 1e-6),
            ("weight_decay", plain().weight_decay(0.1), 1e-6),
            ("betas_eps", plain().betas(0.8, 0.95).eps(1e-3), 1e-6),
            ("large_alone", plain().min_8bit_size(100), 1e-6),
            ("groups_schedule", scheduled.group(vectors()), 1e-6),
        ],
    );
}

#[test]
fn every_schedule_has_the_rates_of_pytorchs() {
    let lr = 0.2;
    let exponential = |decay_steps, decay_rate, staircase| Schedule::Exponential {
        lr,
        decay_steps,
        decay_rate,
        staircase,
    };
    let cycle = OneCycle::new(0.5, 60);
    let linear = OneCycle { anneal: Anneal::Linear, ..cycle.clone() };
    let cases: Vec<(&str, Schedule)> = vec![
        ("constant", lr.into()),
        ("step", Schedule::Step { lr, every: 7, factor: 0.3 }),
        ("multi_step", Schedule::MultiStep { lr, milestones: vec![5, 17, 17, 40], factor: 0.5 }),
        ("exponential", exponential(1, 0.9, false)),
        ("cosine", Schedule::Cosine { lr, steps: 59, min: 0.001 }),
        ("cosine_and_up_again", Schedule::Cosine { lr, steps: 20, min: 0.0 }),
        ("linear", Schedule::Linear { lr, from: 1.0 / 3.0, to: 1.0, steps: 25 }),
        ("linear_decay", Schedule::Linear { lr, from: 1.0, to: 0.1, steps: 59 }),
        ("warm_up_cosine", Schedule::Cosine { lr, steps: 50, min: 0.01 }.warm_up(10, 0.1)),
        ("one_cycle", cycle.clone().into()),
        ("one_cycle_linear", OneCycle { start_share: 0.25, ..linear.clone() }.into()),
        ("one_cycle_three_phase", OneCycle { three_phase: true, div_factor: 10.0, ..cycle }.into()),
        (
            "one_cycle_linear_three_phase",
            OneCycle { three_phase: true, final_div_factor: 100.0, ..linear }.into(),
        ),
        ("singa_exponential", exponential(8, 0.5, false)),
        ("singa_staircase", exponential(8, 0.5, true)),
    ];
    let golden = file("schedules");
    assert_eq!(
        golden.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        cases.iter().map(|(case, _)| *case).collect()
    );
    for (case, schedule) in cases {
        let expected: Vec<f64> = golden[case].to_vec1().unwrap();
        let mut worst = 0.0_f64;
        let mut sgd = Sgd::new(schedule.clone());
        sgd.bind(&[]).unwrap();
        for (step, &expected) in expected.iter().enumerate() {
            let actual = f64::from(schedule.rate(step as u64));
            assert_eq!(f64::from(sgd.learning_rate()), actual);
            sgd.step();
            // PyTorch's cosine is a product of many factors, which is 1e-17 instead of 0.
            if expected.abs() < 1e-15 && actual.abs() < 1e-15 {
                continue;
            }
            let difference = (actual - expected).abs() / expected;
            assert!(difference <= 1e-6, "{case}, step {step}: {actual} and {expected}");
            worst = worst.max(difference);
        }
        println!("{case}: {worst:.1e}");
    }
}

#[test]
fn gradients_are_clipped_as_pytorchs() {
    let golden = file("clip");
    let cases =
        [("norm", Clip::Norm(1.5)), ("norm_large", Clip::Norm(100.0)), ("value", Clip::Value(0.5))];
    for (case, how) in cases {
        let mut grads: Vec<Vec<f32>> =
            SHAPES.iter().zip(5100..).map(|(dims, seed)| numbers(dims, seed, 2.0)).collect();
        let mut spans: Vec<SpanMut<'_>> = grads.iter_mut().map(SpanMut::from).collect();
        let norm = clip(how, &mut spans).unwrap();
        let expected = golden.get(&format!("{case}.norm"));
        assert_eq!(norm.is_some(), expected.is_some());
        if let (Some(norm), Some(expected)) = (norm, expected) {
            let expected = f64::from(expected.to_scalar::<f32>().unwrap());
            assert!((norm - expected).abs() <= 1e-6 * expected, "{norm} and {expected}");
        }
        for (j, grad) in grads.iter().enumerate() {
            let difference = difference(grad, &values(&golden[&format!("{case}.param{j}")]));
            println!("{case}, parameter {j}: {difference:.1e}");
            assert!(difference <= 1e-6, "{case}, parameter {j}: {difference:e}");
        }
    }
}
