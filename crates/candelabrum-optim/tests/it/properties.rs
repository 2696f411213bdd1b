//! Properties of every optimizer: bits that do not depend on threads or on the order of updates,
//! groups, settings that are refused, and a run that continues where another one stopped.

use candelabrum_memory::chunks::CHUNK;
use candelabrum_memory::{Norm, SpanMut};
use candelabrum_optim::{
    AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Clip, Error, Lamb, Lars, Muon, Optimizer,
    ParamGroup, ParamInfo, RmsProp, Schedule, Sgd, Update, clip,
};
use candelabrum_testkit::uniform;
use candle_core::DType;

fn all() -> Vec<Box<dyn Optimizer>> {
    vec![
        Box::new(Sgd::new(0.1).weight_decay(0.1)),
        Box::new(Sgd::new(0.1).momentum(0.9).dampening(0.5)),
        Box::new(Sgd::new(0.1).momentum(0.9).nesterov().weight_decay(0.1)),
        Box::new(Adam::new(0.1).weight_decay(0.1)),
        Box::new(AdamW::new(0.1).amsgrad()),
        Box::new(AdamW::new(0.1).betas(0.3, 0.9)),
        Box::new(RmsProp::new(0.1)),
        Box::new(RmsProp::new(0.1).momentum(0.5)),
        Box::new(RmsProp::new(0.1).centered()),
        Box::new(RmsProp::new(0.1).centered().momentum(0.5)),
        Box::new(AdaGrad::new(0.1).lr_decay(0.1)),
        Box::new(Lamb::new(Schedule::Step { lr: 0.1, every: 1, factor: 0.5 })),
        Box::new(Lars::new(0.1).trust_coefficient(0.1)),
        Box::new(Adafactor::new(0.1).weight_decay(0.1)),
        Box::new(AdamW8bit::new(0.1)),
        Box::new(AdamW8bit::new(0.1).min_8bit_size(0)),
        Box::new(Muon::new(0.1)),
    ]
}

fn numbers(len: usize, seed: u64) -> Vec<f32> {
    uniform(len, seed, -1.0, 1.0, DType::F32).unwrap().to_vec1().unwrap()
}

const SIZES: [usize; 6] = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, 5 * CHUNK + 3];

fn bind(optimizer: &mut dyn Optimizer, sizes: &[usize]) {
    let infos: Vec<_> =
        sizes.iter().map(|len| ParamInfo::on_host("p", std::slice::from_ref(len))).collect();
    optimizer.bind(&infos).unwrap();
}

fn start(sizes: &[usize]) -> Vec<Vec<f32>> {
    sizes.iter().enumerate().map(|(i, &len)| numbers(len, i as u64)).collect()
}

/// Takes steps `steps` with the parameters in this order.
fn train(
    optimizer: &mut dyn Optimizer,
    params: &mut [Vec<f32>],
    steps: std::ops::Range<u64>,
    order: &[usize],
) {
    for step in steps {
        for &i in order {
            let grad = numbers(params[i].len(), 1000 + 10 * step + i as u64);
            optimizer.update(i, (&mut params[i]).into(), (&grad).into()).unwrap();
        }
        optimizer.step();
    }
}

fn bits(params: &[Vec<f32>]) -> Vec<u32> {
    params.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_threads() {
    let in_pool = |threads: usize, index: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut optimizer = all().swap_remove(index);
        let mut params = start(&SIZES);
        bind(&mut *optimizer, &SIZES);
        pool.install(|| train(&mut *optimizer, &mut params, 0..3, &[0, 1, 2, 3, 4, 5]));
        bits(&params)
    };
    for (index, optimizer) in all().iter().enumerate() {
        let one = in_pool(1, index);
        assert!(one.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for threads in [2, 5] {
            assert!(one == in_pool(threads, index), "{threads}: {}", optimizer.describe());
        }
    }
}

#[test]
fn parameters_updated_together_get_the_bits_of_single_updates() {
    for (mut single, mut joint) in all().into_iter().zip(all()) {
        let sizes = [3, 0, 500];
        bind(&mut *single, &sizes);
        bind(&mut *joint, &sizes);
        let (mut expected, mut params) = (start(&sizes), start(&sizes));
        for step in 0..3 {
            train(&mut *single, &mut expected, step..step + 1, &[0, 1, 2]);
            let gradients: Vec<_> =
                (0..3).map(|i| numbers(sizes[i], 1000 + 10 * step + i as u64)).collect();
            let updates = params.iter_mut().zip(&gradients).enumerate();
            let updates = updates.map(|(index, (value, grad))| Update {
                index,
                value: value.into(),
                grad: grad.into(),
            });
            joint.update_all(updates.collect()).unwrap();
            joint.step();
        }
        assert!(bits(&params) == bits(&expected), "{}", joint.describe());
    }
}

#[test]
fn norms_and_clipping_do_not_depend_on_threads() {
    let in_pool = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut grads = start(&SIZES);
            let mut spans: Vec<SpanMut<'_>> = grads.iter_mut().map(SpanMut::from).collect();
            let norm = clip(Clip::Norm(1.0), &mut spans).unwrap().unwrap();
            clip(Clip::Value(1e-3), &mut spans).unwrap();
            (norm.to_bits(), bits(&grads))
        })
    };
    let one = in_pool(1);
    let grads = start(&SIZES);
    let exact = grads.iter().flatten().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    assert!((f64::from_bits(one.0) - exact).abs() <= 1e-12 * exact);
    assert!(in_pool(2) == one && in_pool(5) == one);
}

#[test]
fn a_clipped_gradient_has_the_norm_asked_for() {
    let mut grads = start(&[3, 1, 40]);
    let mut spans: Vec<SpanMut<'_>> = grads.iter_mut().map(SpanMut::from).collect();
    clip(Clip::Norm(0.5), &mut spans).unwrap();
    let mut norm = Norm::default();
    grads.iter().for_each(|grad| norm.add(grad.into()).unwrap());
    let norm = norm.get().unwrap();
    assert!((norm - 0.5).abs() < 1e-6, "{norm}");
}

#[test]
fn parameters_may_be_updated_in_any_order() {
    let sizes = [3, 1, 40];
    for (mut a, mut b) in all().into_iter().zip(all()) {
        let (mut first, mut second) = (start(&sizes), start(&sizes));
        bind(&mut *a, &sizes);
        bind(&mut *b, &sizes);
        train(&mut *a, &mut first, 0..4, &[0, 1, 2]);
        train(&mut *b, &mut second, 0..4, &[2, 0, 1]);
        assert_eq!(bits(&first), bits(&second), "{}", a.describe());
    }
}

#[test]
fn state_and_count_are_all_that_a_run_needs_to_go_on() {
    let (sizes, order) = ([3, 1, 40], [0, 1, 2]);
    for (mut whole, mut part) in all().into_iter().zip(all()) {
        let mut expected = start(&sizes);
        bind(&mut *whole, &sizes);
        train(&mut *whole, &mut expected, 0..6, &order);

        let mut params = start(&sizes);
        bind(&mut *part, &sizes);
        train(&mut *part, &mut params, 0..2, &order);
        let state: Vec<Vec<f32>> = part
            .state_mut()
            .unwrap()
            .iter()
            .map(|state| state.as_span().host().unwrap().to_vec())
            .collect();
        let index = all().iter().position(|o| o.describe() == part.describe()).unwrap();
        let mut resumed = all().swap_remove(index);
        bind(&mut *resumed, &sizes);
        resumed.set_steps(part.steps());
        for (new, old) in resumed.state_mut().unwrap().iter_mut().zip(&state) {
            new.copy_from(old.into()).unwrap();
        }
        train(&mut *resumed, &mut params, 2..6, &order);
        assert_eq!(bits(&params), bits(&expected), "{}", whole.describe());
        assert_eq!(resumed.learning_rate(), whole.learning_rate());
    }
}

#[test]
fn zeros_leave_numbers_behind() {
    // A parameter, a gradient or both are 0, so a norm, a root or an average in a divisor is 0.
    for mut optimizer in all() {
        bind(&mut *optimizer, &[3, 3]);
        let mut params = [vec![0.0; 3], vec![1.0; 3]];
        for _ in 0..3 {
            for (i, param) in params.iter_mut().enumerate() {
                optimizer.update(i, param.into(), (&[0.0; 3]).into()).unwrap();
            }
            optimizer.step();
        }
        assert_eq!(params[0], [0.0; 3], "{}", optimizer.describe());
        assert!(params[1].iter().all(|x| x.is_finite()), "{}", optimizer.describe());
        optimizer.update(0, (&mut params[0]).into(), (&[1.0, 0.0, -1.0]).into()).unwrap();
        assert!(params[0][0] < 0.0 && params[0][1] == 0.0 && params[0][2] > 0.0);
    }
}

#[test]
fn an_average_that_keeps_nothing_is_the_gradient_whatever_was_before() {
    let cases: Vec<(Box<dyn Optimizer>, usize)> = vec![
        (Box::new(Adam::new(0.1).betas(0.0, 0.9)), 0),
        (Box::new(Adam::new(0.1).betas(0.0, 0.0).amsgrad()), 0),
        (Box::new(AdamW::new(0.1).betas(0.0, 0.9)), 0),
        (Box::new(Lamb::new(0.1).betas(0.0, 0.9)), 0),
        (Box::new(RmsProp::new(0.1).alpha(0.0).centered()), 1),
        (Box::new(RmsProp::new(0.1).alpha(0.0).centered().momentum(0.5)), 1),
    ];
    let gradients = [1e12, 0.5, -1.0, 1e-6, -1e18, 1e-30, 0.0, 1.0, 1.0 / 3.0];
    for (mut optimizer, mean) in cases {
        bind(&mut *optimizer, &[gradients.len()]);
        let mut param = vec![1.0; gradients.len()];
        for step in 0..gradients.len() {
            let mut grad = gradients;
            grad.rotate_left(step);
            optimizer.update(0, (&mut param).into(), (&grad).into()).unwrap();
            optimizer.step();
            let text = optimizer.describe();
            let state = optimizer.state_mut().unwrap();
            assert_eq!(state[mean].as_span().host().unwrap(), grad, "{text}");
        }
    }
}

#[test]
fn a_norm_of_zero_makes_the_trust_ratio_one() {
    let lars = || Lars::new(0.25).momentum(0.0).weight_decay(0.5);
    let lamb = || Lamb::new(0.25).betas(0.0, 0.0).eps(0.0).weight_decay(0.0);
    // The update is lr (grad + decay p), and LAMB's is lr times the sign of the gradient.
    let cases: [(Box<dyn Optimizer>, f32, f32, f32); 4] = [
        (Box::new(lars()), 1.0, 0.0, 0.875),
        (Box::new(lars()), 0.0, 2.0, -0.5),
        (Box::new(lars().weight_decay(0.0)), 1.0, 0.0, 1.0),
        (Box::new(lamb()), 0.0, 2.0, -0.25),
    ];
    for (mut optimizer, value, grad, expected) in cases {
        bind(&mut *optimizer, &[2]);
        let mut param = [value; 2];
        optimizer.update(0, (&mut param).into(), (&[grad; 2]).into()).unwrap();
        assert_eq!(param, [expected; 2], "{value}, {grad}: {}", optimizer.describe());
    }
}

#[test]
fn nan_is_not_forgotten() {
    for mut optimizer in all() {
        bind(&mut *optimizer, &[3]);
        let mut param = vec![1.0; 3];
        optimizer.update(0, (&mut param).into(), (&[f32::NAN, 0.5, 0.5]).into()).unwrap();
        assert!(param[0].is_nan(), "{}", optimizer.describe());
    }
}

#[test]
fn a_variance_that_overflows_is_not_taken_for_zero() {
    // The squares of such gradients are infinite, and infinity minus infinity is NaN.
    for mut optimizer in [RmsProp::new(0.1).centered(), RmsProp::new(0.1).centered().momentum(0.5)]
    {
        bind(&mut optimizer, &[1]);
        let mut param = vec![1.0];
        optimizer.update(0, (&mut *param).into(), (&[1e30]).into()).unwrap();
        assert!(param[0].is_nan(), "{}: {param:?}", optimizer.describe());
    }
}

/// `torch.optim.SGD` for one parameter: `None` stands for `p.grad is None`.
fn pytorchs_sgd(grads: &[Option<f32>], momentum: f32, dampening: f32, decay: f32, lr: f32) -> f32 {
    let (mut p, mut buffer) = (1.0, None);
    for grad in grads.iter().flatten() {
        let grad = grad + decay * p;
        let next = match buffer {
            None => grad,
            Some(buffer) => momentum * buffer + (1.0 - dampening) * grad,
        };
        buffer = Some(next);
        p -= lr * next;
    }
    p
}

#[test]
fn the_first_gradient_of_each_parameter_is_not_dampened_whatever_the_step() {
    let never = [None; 6];
    let from_third = [None, None, Some(0.5), Some(-1.0), None, Some(0.25)];
    let all = [0.5, 0.25, -0.5, 1.0, 0.75, -0.25].map(Some);
    for (dampening, decay) in [(0.5, 0.0), (0.5, 0.1), (0.0, 0.1)] {
        let mut sgd = Sgd::new(0.1).momentum(0.9).dampening(dampening).weight_decay(decay);
        let grads = [never, from_third, all];
        bind(&mut sgd, &[1, 1, 1]);
        let mut params = [[1.0_f32]; 3];
        for step in 0..6 {
            for (i, (param, grads)) in params.iter_mut().zip(&grads).enumerate() {
                if let Some(grad) = grads[step] {
                    sgd.update(i, (&mut *param).into(), (&[grad]).into()).unwrap();
                }
            }
            sgd.step();
        }
        for (param, grads) in params.iter().zip(&grads) {
            let expected = pytorchs_sgd(grads, 0.9, dampening as f32, decay as f32, 0.1);
            assert!((param[0] - expected).abs() < 1e-6, "{dampening}: {param:?}, {expected}");
        }
    }
}

fn named() -> [ParamInfo<'static>; 4] {
    [
        ParamInfo::on_host("conv.weight", &[1, 1, 1, 1]),
        ParamInfo::on_host("conv.bias", &[1]),
        ParamInfo::on_host("fc.weight", &[1, 1]),
        ParamInfo::on_host("fc.bias", &[1]),
    ]
}

/// The values of [`named()`] after one step from 1 along gradients of 1.
fn one_step(mut optimizer: impl Optimizer) -> [f32; 4] {
    optimizer.bind(&named()).unwrap();
    let mut values = [1.0; 4];
    for (i, value) in values.iter_mut().enumerate() {
        optimizer.update(i, std::slice::from_mut(value).into(), (&[1.0]).into()).unwrap();
    }
    values
}

#[test]
fn groups_have_settings_of_their_own() {
    let sgd = || Sgd::new(0.25);
    let cases = [
        (sgd().group(ParamGroup::matching("*.bias").lr_scale(2.0)), [0.75, 0.5, 0.75, 0.5]),
        (sgd().group(ParamGroup::below_dims(2).lr(0.0)), [0.75, 1.0, 0.75, 1.0]),
        (
            sgd().weight_decay(1.0).group(ParamGroup::matching("fc.*").weight_decay(0.0)),
            [0.5, 0.5, 0.75, 0.75],
        ),
        // A later group overrides an earlier one, setting by setting.
        (
            sgd()
                .group(ParamGroup::matching("*").lr_scale(2.0).weight_decay(1.0))
                .group(ParamGroup::matching("conv.*").lr_scale(0.0))
                .group(ParamGroup::matching("fc.bias").weight_decay(0.0)),
            [1.0, 1.0, 0.0, 0.5],
        ),
        // A scale also applies to a group's own rate.
        (
            sgd()
                .group(ParamGroup::below_dims(3).lr(0.5))
                .group(ParamGroup::matching("fc.bias").lr_scale(0.5)),
            [0.75, 0.5, 0.5, 0.75],
        ),
    ];
    for (sgd, expected) in cases {
        let line = sgd.describe();
        assert_eq!(one_step(sgd), expected, "{line}");
    }
}

#[test]
fn a_groups_schedule_moves_on() {
    let half = Schedule::Step { lr: 0.5, every: 1, factor: 0.5 };
    let mut sgd = Sgd::new(0.0).group(ParamGroup::matching("fc.bias").lr(half));
    sgd.bind(&named()).unwrap();
    let mut value = [1.0];
    for expected in [0.5, 0.25, 0.125] {
        sgd.update(3, (&mut value).into(), (&[1.0]).into()).unwrap();
        sgd.step();
        assert_eq!(value, [expected]);
    }
}

#[test]
fn a_group_without_a_trust_ratio_takes_adams_step() {
    let off = ParamGroup::matching("*").trust_ratio(false);
    let lamb = one_step(Lamb::new(0.1).eps(1e-8).group(off.clone()));
    let adam = one_step(AdamW::new(0.1));
    assert!(lamb.iter().zip(&adam).all(|(a, b)| (a - b).abs() < 1e-6), "{lamb:?} {adam:?}");
    let lars = one_step(Lars::new(0.25).weight_decay(0.0).group(off));
    assert_eq!(lars, [0.75; 4]);
}

#[test]
fn a_group_that_selects_nothing_is_an_error() {
    let mut adam = Adam::new(0.1).group(ParamGroup::matching("*.bais").weight_decay(0.0));
    let error = adam.bind(&named()).unwrap_err();
    assert!(matches!(error, Error::NothingMatches { .. }));
    let message = error.to_string();
    for part in ["Adam", "`*.bais`", "conv.weight, conv.bias, fc.weight, fc.bias"] {
        assert!(message.contains(part), "{message}");
    }
    adam.bind(&[]).unwrap();
    assert!(Adam::new(0.1).group(ParamGroup::below_dims(1)).bind(&named()).is_err());
}

#[test]
fn settings_out_of_range_are_named() {
    let zero_steps = Schedule::Cosine { lr: 0.1, steps: 0, min: 0.0 };
    let cases: Vec<(Box<dyn Optimizer>, &str)> = vec![
        (Box::new(Sgd::new(-1.0)), "Sgd: lr"),
        (Box::new(Sgd::new(f32::NAN)), "Sgd: lr"),
        (Box::new(Sgd::new(zero_steps.clone())), "Sgd: steps of the schedule lr"),
        (Box::new(Sgd::new(0.1).momentum(-0.5)), "Sgd: momentum"),
        (Box::new(Sgd::new(0.1).weight_decay(f64::INFINITY)), "Sgd: weight_decay"),
        (Box::new(Sgd::new(0.1).nesterov()), "Sgd: momentum"),
        (Box::new(Sgd::new(0.1).momentum(0.9).dampening(0.1).nesterov()), "Sgd: dampening"),
        (Box::new(Adam::new(0.1).betas(1.0, 0.9)), "Adam: beta1"),
        (Box::new(AdamW::new(0.1).betas(0.9, -0.1)), "AdamW: beta2"),
        (Box::new(Adam::new(0.1).eps(-1.0)), "Adam: eps"),
        (Box::new(RmsProp::new(0.1).alpha(1.5)), "RmsProp: alpha"),
        (Box::new(RmsProp::new(0.1).momentum(f64::NAN)), "RmsProp: momentum"),
        (Box::new(AdaGrad::new(0.1).lr_decay(-1.0)), "AdaGrad: lr_decay"),
        (Box::new(AdaGrad::new(0.1).initial_accumulator(-1.0)), "AdaGrad: initial_accumulator"),
        (Box::new(Lamb::new(0.1).betas(0.9, 1.0)), "Lamb: beta2"),
        (Box::new(Lars::new(0.1).trust_coefficient(0.0)), "Lars: trust_coefficient"),
        (Box::new(Adafactor::new(0.1).beta2_decay(0.5)), "Adafactor: beta2_decay"),
        (Box::new(Adafactor::new(0.1).eps(-1.0, 0.1)), "Adafactor: eps1"),
        (Box::new(Adafactor::new(0.1).eps(0.1, f64::NAN)), "Adafactor: eps2"),
        (
            Box::new(Adafactor::new(0.1).clipping_threshold(0.5)),
            "Adafactor: the clipping threshold is 0.5, it must be a finite number of at least 1",
        ),
        (Box::new(Muon::new(0.1).momentum(1.0)), "Muon: momentum"),
        (Box::new(Muon::new(0.1).coefficients([1.0, f64::NAN, 0.0])), "Muon: the coefficient b"),
        (
            Box::new(Muon::new(0.1).iterations(100)),
            "Muon: iterations is 100, it must be at least 0",
        ),
        (Box::new(Muon::new(0.1).eps(-1.0)), "Muon: eps"),
        (Box::new(Muon::new(0.1).adamw([0.9, 1.0], 1e-8)), "AdamW: beta2"),
        (
            Box::new(Sgd::new(0.1).group(ParamGroup::matching("*.bias").weight_decay(-1.0))),
            "Sgd: weight_decay of the group `*.bias`",
        ),
        (
            Box::new(Sgd::new(0.1).group(ParamGroup::below_dims(2).lr(zero_steps))),
            "Sgd: steps of the schedule lr of the group below 2 dims",
        ),
    ];
    for (mut optimizer, expected) in cases {
        let message = optimizer.bind(&[]).unwrap_err().to_string();
        assert!(message.contains(expected), "{expected} is missing: {message}");
    }
}

#[test]
fn every_setting_is_in_the_description() {
    let group = || ParamGroup::matching("a");
    let adams = [
        Adam::new(0.1),
        Adam::new(0.2),
        Adam::new(Schedule::Cosine { lr: 0.1, steps: 5, min: 0.0 }),
        Adam::new(0.1).weight_decay(0.1),
        Adam::new(0.1).betas(0.8, 0.999),
        Adam::new(0.1).betas(0.9, 0.99),
        Adam::new(0.1).eps(1e-7),
        Adam::new(0.1).amsgrad(),
        Adam::new(0.1).group(group()),
        Adam::new(0.1).group(group().lr(0.1)),
        Adam::new(0.1).group(group().lr_scale(0.1)),
        Adam::new(0.1).group(group().weight_decay(0.1)),
        Adam::new(0.1).group(group().trust_ratio(false)),
        Adam::new(0.1).group(ParamGroup::matching("b")),
        Adam::new(0.1).group(ParamGroup::below_dims(2)),
        Adam::new(0.1).group(ParamGroup::below_dims(3)),
    ];
    let lines: std::collections::BTreeSet<_> = adams.iter().map(|adam| adam.describe()).collect();
    assert_eq!(lines.len(), adams.len(), "{lines:#?}");
}

#[test]
fn a_call_that_does_not_fit_is_an_error() {
    let mut sgd = Sgd::new(0.1);
    bind(&mut sgd, &[2]);
    assert_eq!(
        sgd.update(1, (&mut [0.0]).into(), (&[0.0]).into()),
        Err(Error::Unbound { index: 1, bound: 1 })
    );
    assert!(sgd.update(0, (&mut [0.0]).into(), (&[0.0, 1.0]).into()).is_err());
    let mut values = [[0.0; 2]; 2];
    let mut together = |indices: [usize; 2]| {
        let updates = indices.iter().zip(&mut values);
        let updates = updates.map(|(&index, value)| Update {
            index,
            value: value.into(),
            grad: (&[0.0; 2]).into(),
        });
        sgd.update_all(updates.collect())
    };
    assert_eq!(together([0, 1]), Err(Error::Unbound { index: 1, bound: 1 }));
    assert_eq!(together([0, 0]), Err(Error::Repeated { index: 0 }));
}

#[test]
fn two_steps_by_hand() {
    let mut sgd = Sgd::new(0.5).momentum(0.5).weight_decay(1.0);
    bind(&mut sgd, &[1]);
    let mut p = [1.0];
    sgd.update(0, (&mut p).into(), (&[1.0]).into()).unwrap(); // g = 2, v = 2, p = 1 - 1 = 0
    sgd.step();
    assert_eq!(p, [0.0]);
    sgd.update(0, (&mut p).into(), (&[1.0]).into()).unwrap(); // g = 1, v = 2, p = 0 - 1 = -1
    assert_eq!(p, [-1.0]);
}
