//! A sequential reference of every strategy in f64, with a bound on the effect of the f32 and
//! 16-bit roundings of the real strategy.

use candelabrum::prelude::DistOption;

use super::problem::{
    BUCKET, Case, LR, MOMENTUM, PARAMS, STEPS, WEIGHT_DECAY, gradient, initial, len,
};

/// Relative rounding of f32, and a little more for the few operations of a step.
const F32: f64 = 1.0 / (1 << 22) as f64;

/// A number and a bound on the difference of the real number from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounded {
    pub(crate) value: f64,
    pub(crate) bound: f64,
}

/// One number of every element, parameter by parameter.
pub(crate) type Elements = Vec<Vec<Bounded>>;

/// The expected results of a case.
#[derive(Debug)]
pub(crate) struct Expected {
    /// By rank, after the last step.
    pub(crate) params: Vec<Elements>,
    /// On every rank, after `average_parameters`.
    pub(crate) averaged: Elements,
    /// By rank; `None` without error feedback.
    pub(crate) residual: Option<Vec<Elements>>,
}

fn zeros() -> Elements {
    (0..PARAMS.len()).map(|param| vec![Bounded::default(); len(param)]).collect()
}

/// The buckets as lists of parameters, in SINGA's order.
fn buckets() -> Vec<Vec<usize>> {
    let (mut buckets, mut open, mut elements) = (Vec::new(), Vec::new(), 0);
    for param in (0..PARAMS.len()).rev() {
        if len(param) > BUCKET {
            buckets.push(vec![param]);
            continue;
        }
        open.push(param);
        elements += len(param);
        if elements > BUCKET {
            buckets.push(std::mem::take(&mut open));
            elements = 0;
        }
    }
    buckets.push(open);
    buckets
}

/// Trains `world` ranks one after the other.
pub(crate) fn train(case: Case, world: usize) -> Expected {
    let mut params: Vec<Elements> = vec![zeros(); world];
    for (param, values) in params.iter_mut().flat_map(|rank| rank.iter_mut().enumerate()) {
        for (element, initial) in values.iter_mut().zip(initial(param)) {
            element.value = f64::from(initial);
        }
    }
    let mut velocity: Vec<Elements> = vec![zeros(); world];
    let mut residual: Vec<Elements> = vec![zeros(); world];
    for step in 0..STEPS {
        let local: Vec<Elements> = (0..world).map(|rank| local_gradient(rank, step)).collect();
        let applied = match case.option {
            DistOption::PartialUpdate => local,
            DistOption::SparseTopK | DistOption::SparseThreshold => {
                vec![sparse_mean(case, &local, &mut residual); world]
            }
            option => vec![dense_mean(option, &local); world],
        };
        for rank in 0..world {
            sgd(&mut params[rank], &mut velocity[rank], &applied[rank], step == 0);
        }
        if case.option == DistOption::PartialUpdate {
            let buckets = buckets();
            for &param in &buckets[step as usize % buckets.len()] {
                let mean = average(&params, param);
                params.iter_mut().for_each(|rank| rank[param].clone_from(&mean));
            }
        }
    }
    let averaged = (0..PARAMS.len()).map(|param| average(&params, param)).collect();
    let sparse = matches!(case.option, DistOption::SparseTopK | DistOption::SparseThreshold);
    Expected { params, averaged, residual: (sparse && case.corr).then_some(residual) }
}

fn local_gradient(rank: usize, step: u64) -> Elements {
    let exact = |value: f32| Bounded { value: f64::from(value), bound: 0.0 };
    let of = |param| gradient(rank, step, param).into_iter().map(exact).collect();
    (0..PARAMS.len()).map(of).collect()
}

/// The mean of one parameter over ranks.
fn average(ranks: &[Elements], param: usize) -> Vec<Bounded> {
    let count = ranks.len() as f64;
    (0..len(param))
        .map(|at| {
            let sum: f64 = ranks.iter().map(|rank| rank[param][at].value).sum();
            let bounds: f64 = ranks.iter().map(|rank| rank[param][at].bound).sum();
            let size: f64 = ranks.iter().map(|rank| rank[param][at].value.abs()).sum();
            Bounded { value: sum / count, bound: (bounds + size * F32) / count }
        })
        .collect()
}

/// fp32, fp16, bf16: the mean, with a bound on the rounding of the element type.
fn dense_mean(option: DistOption, local: &[Elements]) -> Elements {
    // Half the distance of neighbouring numbers: relative, and absolute for the smallest numbers.
    let (relative, absolute) = match option {
        DistOption::Fp16 => (1.0 / 2048.0, 2.0_f64.powi(-25)),
        DistOption::Bf16 => (1.0 / 256.0, 0.0),
        _ => (0.0, 0.0),
    };
    let ranks = local.len() as f64;
    let mean = |param: usize| {
        let exact = average(local, param).into_iter().enumerate();
        let rounded = exact.map(|(at, mean)| {
            // Each rank's share is rounded, then the sum.
            let shares: f64 = local.iter().map(|rank| rank[param][at].value.abs() / ranks).sum();
            let casts = relative * (shares + (1.0 + relative) * shares) + (ranks + 1.0) * absolute;
            Bounded { bound: mean.bound + casts, ..mean }
        });
        rounded.collect()
    };
    (0..PARAMS.len()).map(mean).collect()
}

/// sparseTopK and sparseThreshold: the mean of the elements that ranks send. Updates the residuals.
fn sparse_mean(case: Case, local: &[Elements], residual: &mut [Elements]) -> Elements {
    let world = local.len();
    let mut mean = zeros();
    for bucket in buckets() {
        let places: Vec<(usize, usize)> =
            bucket.iter().flat_map(|&param| (0..len(param)).map(move |at| (param, at))).collect();
        // u = g + r on every rank, and the places of its sent elements.
        let mut us = Vec::new();
        let mut sent = Vec::new();
        for (gradient, residual) in local.iter().zip(&*residual) {
            let u: Vec<Bounded> = places
                .iter()
                .map(|&(param, at)| {
                    let (g, r) = (gradient[param][at], residual[param][at]);
                    let value = g.value + r.value;
                    Bounded { value, bound: g.bound + r.bound + value.abs() * F32 }
                })
                .collect();
            sent.push(select(case, &u));
            us.push(u);
        }
        // The longest message decides for all ranks whether they send the whole bucket.
        let most = sent.iter().map(Vec::len).max().unwrap_or(0);
        if most * world >= places.len() {
            sent = vec![(0..places.len()).collect(); world];
        }
        for rank in 0..world {
            for (i, &(param, at)) in places.iter().enumerate() {
                let goes = sent[rank].binary_search(&i).is_ok();
                let u = us[rank][i];
                residual[rank][param][at] = if goes || !case.corr { Bounded::default() } else { u };
                if goes {
                    let mean = &mut mean[param][at];
                    mean.value += u.value / world as f64;
                    mean.bound += (u.bound + u.value.abs() * F32) / world as f64;
                }
            }
        }
    }
    mean
}

/// The places in a bucket that a rank sends, ascending. The data must be such that rounding cannot
/// change the selection.
fn select(case: Case, u: &[Bounded]) -> Vec<usize> {
    let size = |i: usize| u[i].value.abs();
    let mut order: Vec<usize> = (0..u.len()).collect();
    let mut sent = match case.option {
        DistOption::SparseTopK => {
            // The decimal number 0.05 or 0.3, not its nearest f32.
            let share: f64 = case.spars.to_string().parse().unwrap();
            let count = ((share * u.len() as f64) - 1e-9).ceil() as usize;
            order.sort_by(|&a, &b| size(b).total_cmp(&size(a)));
            let gap = size(order[count - 1]) - size(order[count]);
            assert!(gap > 4.0 * u[order[count]].bound, "too close to call: {gap}");
            order.truncate(count);
            order
        }
        _ => {
            let spars = f64::from(case.spars);
            let close = |&i: &usize| (size(i) - spars).abs() <= 4.0 * u[i].bound;
            assert!(!order.iter().any(close), "too close to call");
            order.retain(|&i| size(i) >= spars);
            order
        }
    };
    sent.sort_unstable();
    sent
}

/// PyTorch's SGD with momentum and weight decay.
fn sgd(params: &mut Elements, velocity: &mut Elements, grads: &Elements, first: bool) {
    let (lr, momentum, decay) = (f64::from(LR), f64::from(MOMENTUM), f64::from(WEIGHT_DECAY));
    let places = params.iter_mut().flatten().zip(velocity.iter_mut().flatten());
    for ((p, v), g) in places.zip(grads.iter().flatten()) {
        let d = g.value + decay * p.value;
        let d_bound = g.bound + decay * p.bound + d.abs() * F32;
        let kept = if first { 0.0 } else { momentum };
        v.value = kept * v.value + d;
        v.bound = kept * v.bound + d_bound + v.value.abs() * F32;
        p.value -= lr * v.value;
        p.bound += lr * v.bound + (p.value.abs() + lr * v.value.abs()) * F32;
    }
}
