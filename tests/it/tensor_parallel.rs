//! Differentiable collectives on real processes: their gradients against central differences.

use candelabrum::candle::{Result, Var};
use candelabrum::dist::{Error, Group, ops};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{assert_close, uniform};

use crate::ranks::on_processes;

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-8;

type Operation = fn(&Tensor, &Group) -> Result<Tensor>;

/// The operations by name. Their input is (6, 2, 6), which 2 and 3 ranks can divide.
const OPERATIONS: [(&str, Operation); 17] = [
    ("all_reduce by sum", |xs, group| ops::all_reduce(xs, ReduceOp::Sum, group)),
    ("all_reduce by mean", |xs, group| ops::all_reduce(xs, ReduceOp::Mean, group)),
    ("all_gather", |xs, group| ops::all_gather(xs, 0, group)),
    ("all_gather along 1", |xs, group| ops::all_gather(xs, 1, group)),
    ("reduce_scatter", |xs, group| ops::reduce_scatter(xs, 0, group)),
    ("reduce_scatter along 2", |xs, group| ops::reduce_scatter(xs, 2, group)),
    ("all_gather_v along 1", |xs, group| {
        ops::all_gather_v(&xs.narrow(1, 0, rows(group))?, 1, group)
    }),
    ("reduce_scatter_v", |xs, group| ops::reduce_scatter_v(xs, 0, &lens(group), group)),
    ("reduce_scatter_v along 2", |xs, group| ops::reduce_scatter_v(xs, 2, &lens(group), group)),
    ("broadcast", |xs, group| ops::broadcast(xs, 1, group)),
    ("reduce", |xs, group| ops::reduce(xs, 1, group)),
    ("scatter", |xs, group| ops::scatter(xs, 0, 1, group)),
    ("scatter along 2", |xs, group| ops::scatter(xs, 2, 0, group)),
    ("gather", |xs, group| ops::gather(xs, 0, 1, group)),
    ("gather along 1", |xs, group| ops::gather(xs, 1, 0, group)),
    ("all_to_all", |xs, group| ops::all_to_all(xs, 0, group)),
    ("all_to_all along 2", |xs, group| ops::all_to_all(&xs.transpose(0, 1)?, 2, group)),
];

/// This rank's share of the two rows. Rank 1 has none.
fn rows(group: &Group) -> usize {
    [2, 0, 1][group.rank()]
}

/// Different lengths of six entries, one of them empty among three ranks.
fn lens(group: &Group) -> Vec<usize> {
    if group.world_size() == 2 { vec![1, 5] } else { vec![2, 0, 4] }
}

fn input(group: &Group) -> Tensor {
    uniform((6, 2, 6), 10 + group.rank() as u64, -1.0, 1.0, DType::F64).unwrap()
}

/// This rank's loss of its result. The loss is another function on every rank.
fn loss(ys: &Tensor, group: &Group) -> Result<Tensor> {
    let weights = uniform(ys.shape(), 50 + group.rank() as u64, 0.5, 1.5, DType::F64)?;
    (ys.sqr()? * weights)?.sum_all()
}

/// `xs` with `delta` added to one element.
fn moved(xs: &Tensor, element: usize, delta: f64) -> Tensor {
    let mut values = xs.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values[element] += delta;
    Tensor::from_vec(values, xs.shape(), &Device::Cpu).unwrap()
}

#[test]
fn gradients_are_those_of_the_sum_of_all_ranks_losses() {
    let Some(world) =
        on_processes(RanksOf::new(gradients_are_those_of_the_sum_of_all_ranks_losses), &[2, 3])
    else {
        return;
    };
    let group = world.group();
    for (name, operation) in OPERATIONS {
        let xs = Var::from_tensor(&input(&group)).unwrap();
        let own = loss(&operation(xs.as_tensor(), &group).unwrap(), &group).unwrap();
        let gradient = own.backward().unwrap().get(&xs).unwrap().flatten_all().unwrap();
        let gradient = gradient.to_vec1::<f64>().unwrap();
        // All ranks compute the loss, with one element of one rank's input changed.
        let objective = |rank: usize, element: usize, delta: f64| {
            let delta = if group.rank() == rank { delta } else { 0.0 };
            let xs = moved(&input(&group), element, delta);
            let own = loss(&operation(&xs, &group).unwrap(), &group).unwrap();
            let mut sum = [own.to_scalar::<f64>().unwrap()];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            sum[0]
        };
        for rank in 0..group.world_size() {
            for element in (0..gradient.len()).step_by(5) {
                let (up, down) = (objective(rank, element, STEP), objective(rank, element, -STEP));
                let numeric = (up - down) / (2.0 * STEP);
                let error = (numeric - gradient[element]).abs();
                assert!(
                    rank != group.rank() || error < TOLERANCE * (1.0 + numeric.abs()),
                    "{name}: element {element}: {} by backward, {numeric} by differences",
                    gradient[element]
                );
            }
        }
    }
}

/// A split layer between Megatron's two operations: `sum over ranks (tanh(xs a_r) b_r)`.
fn split_layer(xs: &Tensor, [a, b]: [&Tensor; 2], group: &Group) -> Result<Tensor> {
    let xs = ops::copy_to_group(xs, group)?;
    ops::reduce_from_group(&xs.matmul(a)?.tanh()?.matmul(b)?, group)?.sqr()?.sum_all()
}

#[test]
fn megatrons_pair_gives_the_gradients_of_one_loss() {
    let Some(world) =
        on_processes(RanksOf::new(megatrons_pair_gives_the_gradients_of_one_loss), &[2, 3])
    else {
        return;
    };
    let group = world.group();
    let own = 1 + group.rank() as u64;
    let random = |shape: (usize, usize), seed| uniform(shape, seed, -1.0, 1.0, DType::F64).unwrap();
    let (xs, a, b) = (random((3, 4), 0), random((4, 2), own), random((2, 3), 10 * own));
    let [xs, a, b] = [xs, a, b].map(|tensor| Var::from_tensor(&tensor).unwrap());
    // Every rank has the same loss, and the whole gradient of the shared input.
    let loss = split_layer(&xs, [&a, &b], &group).unwrap();
    let grads = loss.backward().unwrap();
    let value = |xs: &Tensor, a: &Tensor| {
        split_layer(xs, [a, b.as_tensor()], &group).unwrap().to_scalar::<f64>().unwrap()
    };
    let check = |var: &Var, element: usize, difference: f64| {
        let numeric = difference / (2.0 * STEP);
        let gradient = grads.get(var).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let error = (numeric - gradient[element]).abs();
        assert!(error < TOLERANCE * (1.0 + numeric.abs()), "{numeric}, {}", gradient[element]);
    };
    for element in 0..12 {
        let at = |delta| value(&moved(&xs, element, delta), &a);
        check(&xs, element, at(STEP) - at(-STEP));
    }
    for rank in 0..group.world_size() {
        for element in 0..8 {
            let mine = rank == group.rank();
            let at = |delta| value(&xs, &moved(&a, element, if mine { delta } else { 0.0 }));
            let difference = at(STEP) - at(-STEP);
            if mine {
                check(&a, element, difference);
            }
        }
    }
    // Autograd through `all_reduce` instead counts every rank's copy of the loss.
    let summed = Var::from_tensor(&xs).unwrap();
    let ys = summed.matmul(&a).unwrap().tanh().unwrap().matmul(&b).unwrap();
    let ys = ops::all_reduce(&ys, ReduceOp::Sum, &group).unwrap();
    let copies = ys.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let own_part = ops::all_reduce(copies.get(&summed).unwrap(), ReduceOp::Sum, &group).unwrap();
    let expected = (grads.get(&xs).unwrap() * group.world_size() as f64).unwrap();
    assert_close(&own_part, &expected, 1e-12, 1e-12);
}

#[test]
fn values_of_every_float_and_errors_are_as_they_should_be() {
    let Some(world) =
        on_processes(RanksOf::new(values_of_every_float_and_errors_are_as_they_should_be), &[2])
    else {
        return;
    };
    let (group, rank) = (world.group(), world.rank() as f64);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let of = |values: &[f64]| {
            let values = Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            values.reshape((values.elem_count() / 2, 2)).unwrap()
        };
        let xs = Var::from_tensor(&of(&[rank, rank + 1.0, rank + 2.0, rank + 3.0])).unwrap();
        let check = |name: &str, result: Result<Tensor>, expected: &[f64], gradient: &[f64]| {
            let result = result.unwrap();
            assert_eq!(result.dtype(), dtype, "{name}");
            assert_close(&result, &of(expected), 0.0, 0.0);
            let grads = result.sum_all().unwrap().backward().unwrap();
            assert_close(grads.get(&xs).unwrap(), &of(gradient), 0.0, 0.0);
        };
        let two = [2.0; 4];
        let sum = ops::all_reduce(&xs, ReduceOp::Sum, &group);
        check("all_reduce", sum, &[1.0, 3.0, 5.0, 7.0], &two);
        let all = ops::all_gather(&xs, 0, &group);
        check("all_gather", all, &[0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0], &two);
        let part = ops::reduce_scatter(&xs, 0, &group);
        let expected = if rank == 0.0 { [1.0, 3.0] } else { [5.0, 7.0] };
        check("reduce_scatter", part, &expected, &[1.0; 4]);
        let part = ops::reduce_scatter_v(&xs, 0, &[0, 2], &group);
        let expected: &[f64] = if rank == 0.0 { &[] } else { &[1.0, 3.0, 5.0, 7.0] };
        check("reduce_scatter_v", part, expected, &[1.0; 4]);
        let first = ops::broadcast(&xs, 0, &group);
        let gradient = if rank == 0.0 { two } else { [0.0; 4] };
        check("broadcast", first, &[0.0, 1.0, 2.0, 3.0], &gradient);
        let sum = ops::reduce(&xs, 1, &group);
        let expected = if rank == 1.0 { [1.0, 3.0, 5.0, 7.0] } else { [0.0; 4] };
        check("reduce", sum, &expected, &[1.0; 4]);
        let own = ops::scatter(&xs, 0, 1, &group);
        let expected = if rank == 0.0 { [1.0, 2.0] } else { [3.0, 4.0] };
        let gradient = if rank == 1.0 { [1.0; 4] } else { [0.0; 4] };
        check("scatter", own, &expected, &gradient);
        let all = ops::gather(&xs, 0, 1, &group);
        let there = [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0];
        let expected = if rank == 1.0 { there } else { [0.0; 8] };
        check("gather", all, &expected, &[1.0; 4]);
        let mixed = ops::all_to_all(&xs, 0, &group);
        let own = 2.0 * rank;
        check("all_to_all", mixed, &[own, own + 1.0, own + 1.0, own + 2.0], &[1.0; 4]);
    }

    let odd = Tensor::zeros((3, 2), DType::F32, &Device::Cpu).unwrap();
    let error = Error::from(ops::reduce_scatter(&odd, 0, &group).unwrap_err());
    assert!(matches!(error, Error::NotDivisible { len: 3, .. }), "{error}");
    let error = Error::from(ops::scatter(&odd, 0, 0, &group).unwrap_err());
    assert!(matches!(error, Error::NotDivisible { op: "scatter", len: 3, .. }), "{error}");
    let error = Error::from(ops::reduce_scatter_v(&odd, 0, &[1, 1], &group).unwrap_err());
    assert!(matches!(error, Error::Length { expected: 3, got: 2, .. }), "{error}");
    let error = Error::from(ops::reduce_scatter_v(&odd, 0, &[3], &group).unwrap_err());
    assert!(matches!(error, Error::Parts { parts: 1, world_size: 2, .. }), "{error}");
    let wider = Tensor::zeros((3, 2 + rank as usize), DType::F32, &Device::Cpu).unwrap();
    let error = ops::all_gather_v(&wider, 0, &group).unwrap_err().to_string();
    assert!(error.contains("dimensions must be equal"), "{error}");
    for result in [ops::gather(&odd, 0, 2, &group), ops::reduce(&odd, 2, &group)] {
        let error = Error::from(result.unwrap_err());
        assert!(matches!(error, Error::RankOutOfRange { rank: 2, .. }), "{error}");
    }
    let error = Error::from(ops::all_reduce(&odd, ReduceOp::Max, &group).unwrap_err());
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let indices = Tensor::zeros(2, DType::U32, &Device::Cpu).unwrap();
    assert!(ops::all_gather(&indices, 0, &group).is_err());
    // Both ranks receive the communicator's error about their disagreement.
    let len = if rank == 0.0 { 2 } else { 3 };
    let xs = Tensor::zeros(len, DType::F32, &Device::Cpu).unwrap();
    let error = Error::from(ops::all_reduce(&xs, ReduceOp::Sum, &group).unwrap_err());
    assert!(matches!(error, Error::Disagreement { rank: 1, .. }), "{error}");
}

#[test]
fn a_group_of_one_changes_nothing() {
    let group = World::single().group();
    let xs = uniform((2, 3), 1, -1.0, 1.0, DType::F64).unwrap();
    for result in [
        ops::all_reduce(&xs, ReduceOp::Mean, &group),
        ops::all_gather(&xs, 1, &group),
        ops::reduce_scatter(&xs, 1, &group),
        ops::all_gather_v(&xs, 1, &group),
        ops::reduce_scatter_v(&xs, 1, &[3], &group),
        ops::broadcast(&xs, 0, &group),
        ops::reduce(&xs, 0, &group),
        ops::scatter(&xs, 1, 0, &group),
        ops::gather(&xs, 1, 0, &group),
        ops::all_to_all(&xs, 1, &group),
        ops::copy_to_group(&xs, &group),
        ops::reduce_from_group(&xs, &group),
    ] {
        assert_close(&result.unwrap(), &xs, 0.0, 0.0);
    }
}
