//! The gradient of a step is that of the weighted mean over everything that counts in the global batch, however
//! the batch is divided into micro-batches and among ranks.

use std::ops::Range;

use candelabrum::candle::{Result, Var};
use candelabrum::dist::Mesh;
use candelabrum::nn::{LossWeight, Param, Recompute, weighted};
use candelabrum::prelude::*;
use candelabrum_testkit::uniform;

use crate::adapters::{SumOfLayers, Trained};
use crate::draw::{Draw, for_each_seed};
use crate::ranks::on_ranks;

/// Seeds that have found something.
const KEPT: &[u64] = &[2468];

const STEPS: usize = 3;
/// Layers beside the one that is drawn.
const MORE: usize = 20;
const CLASSES: usize = 4;
const FEATURES: usize = 3;
const IGNORED: i64 = -100;
/// The number of Muon among the optimizers.
const MUON: usize = 3;

/// What a loss counts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counts {
    /// A cross entropy counts the rows that are not ignored.
    Rows,
    /// A loss of the user's own counts the rows that he says.
    Said,
    /// A cross entropy counts all rows.
    AllRows,
}

#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    trained: Trained,
    recompute: Recompute,
    counts: Counts,
    uneven: bool,
    /// The servers that update the parameters. Without them the ranks do.
    servers: usize,
    optimizer: usize,
    clip: bool,
    /// Whether the weights are exchanged before the forward pass.
    begins: bool,
    /// The steps in which the bias is frozen, which is not before the second one.
    frozen: Range<usize>,
    /// By step: the labels of the global batch.
    labels: Vec<Vec<i64>>,
    /// By step and rank: the rows of each micro-batch. A rank may have none.
    parts: Vec<Vec<Vec<usize>>>,
    /// What each rank keeps only its shard of.
    shard: Shard,
    /// By rank: its host, if the ranks add by hosts.
    hosts: Option<Vec<usize>>,
    /// Whether it is shards of parameters that the ranks keep, if they keep shards.
    shards_parameters: bool,
    outside: Outside,
    /// Whether new values may arrive while the next forward pass begins.
    overlap_forward: bool,
    /// A rank that fails after the last step, while the others read their parameters.
    fails_at_end: Option<usize>,
}

/// Uses of parameters outside of the layers that own them.
#[derive(Clone, Debug, Default)]
struct Outside {
    /// The steps in which the loss has a penalty on all weights.
    penalized: Range<usize>,
    /// Whether the last rank looks at all weights before the first step.
    looks: bool,
    tied: Tied,
}

/// Whether a weight is used twice in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Tied {
    #[default]
    Not,
    Fresh,
    /// By a tensor that the program keeps from before the first step.
    Kept,
}

impl Outside {
    fn drawn(draw: &mut Draw) -> Self {
        let first = draw.one_of(&[0, 0, 1, STEPS]);
        let tied = draw.one_of(&[Tied::Not, Tied::Not, Tied::Fresh, Tied::Kept]);
        Self { penalized: first..draw.number(first, STEPS), looks: draw.chance(30), tied }
    }
}

impl Case {
    fn new(seed: u64) -> Self {
        let draw = &mut Draw::new(seed);
        let ranks = draw.number(1, 4);
        let counts = draw.one_of(&[Counts::Rows, Counts::Rows, Counts::Said, Counts::AllRows]);
        let draw_servers = &mut Draw::new(seed ^ 0x5E4E);
        let (servers, uneven) = match draw.number(0, 3) {
            0 => (draw_servers.number(1, 2), draw_servers.chance(40) && !KEPT.contains(&seed)),
            number => (0, number == 1),
        };
        let share = draw.one_of(&[0, 20, 60, 95]);
        let (mut labels, mut parts) = (Vec::<Vec<i64>>::new(), Vec::new());
        for _ in 0..STEPS {
            // Where nothing can be exchanged, ranks have equally many rows.
            let even = counts == Counts::AllRows && !uneven;
            let rows = draw.number(1, 6);
            // Only the last ranks of the last step may have none: they join.
            let divided: Vec<Vec<usize>> = (0..ranks)
                .map(|_| {
                    let rows = if even { rows } else { draw.number(1, 6) };
                    divide(rows, draw)
                })
                .collect();
            let count = divided.iter().flatten().sum::<usize>();
            let label = |draw: &mut Draw| match draw.chance(share) && counts != Counts::AllRows {
                true => IGNORED,
                false => draw.number(0, CLASSES - 1) as i64,
            };
            labels.push((0..count).map(|_| label(draw)).collect());
            parts.push(divided);
        }
        let joins = if uneven { draw.number(0, ranks - 1) } else { 0 };
        if joins > 0 {
            let last = parts.last_mut().unwrap();
            last.truncate(ranks - joins);
            let count = last.iter().flatten().sum();
            labels.last_mut().unwrap().truncate(count);
            last.resize(ranks, Vec::new());
        }
        let (mut optimizer, clip) = (draw.number(0, 2), draw.chance(30));
        // Drawn apart, so that the kept seeds are the cases that they were.
        let draw_later = &mut Draw::new(seed ^ 0xA7E);
        if draw_later.chance(30) && !KEPT.contains(&seed) {
            optimizer = draw_later.number(MUON, MUON + 1);
        }
        let begins = draw.chance(30) && joins == 0;
        let first = draw.number(1, STEPS);
        let frozen = first..draw.number(first, STEPS);
        let trained = Trained::drawn(draw);
        let recompute = if draw.chance(30) { Recompute::All } else { Recompute::None };
        let draw_outside = &mut Draw::new(seed ^ 0x07517E);
        let outside = match KEPT.contains(&seed) {
            true => Outside::default(),
            false => Outside::drawn(draw_outside),
        };
        // Who keeps a tensor must not promise to keep none.
        let overlap_forward = draw_outside.chance(50) && outside.tied != Tied::Kept;
        let fails_at_end = draw_outside.chance(30).then(|| draw_outside.number(0, ranks - 1));
        let draw_blocks = &mut Draw::new(seed ^ 0xB10C);
        let recompute = match recompute {
            Recompute::None if !KEPT.contains(&seed) && draw_blocks.chance(30) => Recompute::Half,
            recompute => recompute,
        };
        let shards_parameters = recompute == Recompute::All || draw_blocks.chance(50);
        Self {
            ranks,
            trained,
            recompute,
            shards_parameters,
            counts,
            uneven,
            servers,
            optimizer,
            clip,
            begins,
            frozen,
            labels,
            parts,
            shard: Shard::None,
            hosts: None,
            outside,
            overlap_forward,
            fails_at_end: fails_at_end.filter(|_| ranks > 1),
        }
    }

    /// What each rank keeps only its shard of. A block's parameters have no tensors that can be kept.
    fn sharing(&self, shard: Shard) -> Self {
        let mut case = Self { shard, ..self.clone() };
        if shard == Shard::Parameters && case.outside.tied == Tied::Kept {
            case.outside.tied = Tied::Fresh;
        }
        case
    }

    /// The same ranks on hosts at random.
    fn on_hosts(&self, seed: u64) -> Self {
        let draw = &mut Draw::new(seed ^ 0x4057);
        let count = draw.number(1, self.ranks);
        let hosts = match self.ranks.is_multiple_of(count) && draw.chance(80) {
            // As many ranks on each, neighbours or not.
            true if draw.chance(50) => (0..self.ranks).map(|rank| rank % count).collect(),
            true => (0..self.ranks).map(|rank| rank * count / self.ranks).collect(),
            false => (0..self.ranks).map(|_| draw.number(0, count - 1)).collect(),
        };
        Self { hosts: Some(hosts), ..self.clone() }
    }

    fn has_even_hosts(&self) -> bool {
        let hosts = self.hosts.as_deref().unwrap_or_default();
        let on = |host: &usize| hosts.iter().filter(|other| *other == host).count();
        hosts.iter().all(|host| on(host) == on(&hosts[0]))
    }

    /// The same global batches, as one micro-batch of one rank.
    fn whole(&self) -> Self {
        let parts = self.labels.iter().map(|labels| vec![vec![labels.len()]]).collect();
        let hosts = None;
        Self {
            ranks: 1,
            uneven: false,
            servers: 0,
            parts,
            begins: false,
            recompute: Recompute::None,
            hosts,
            fails_at_end: None,
            ..self.clone()
        }
    }
}

/// Rows in micro-batches at random.
fn divide(rows: usize, draw: &mut Draw) -> Vec<usize> {
    let mut parts = Vec::new();
    let mut left = rows;
    while left > 0 {
        let part = draw.number(1, left);
        parts.push(part);
        left -= part;
    }
    parts
}

/// The loss of some rows.
fn loss(counts: Counts, logits: &Tensor, labels: &[i64]) -> Result<Tensor> {
    let targets = Tensor::new(labels, logits.device())?;
    match counts {
        Counts::AllRows => SoftMaxCrossEntropy::new().forward(logits, &targets),
        Counts::Rows => SoftMaxCrossEntropy::new().ignore_index(IGNORED).forward(logits, &targets),
        Counts::Said => {
            let mask: Vec<f32> = labels.iter().map(|label| count(*label) as f32).collect();
            let (rows, mask) = (mask.iter().sum::<f32>(), Tensor::new(mask, logits.device())?);
            let wanted: Vec<f32> = labels.iter().map(|label| *label as f32).collect();
            let difference =
                (logits.narrow(1, 0, 1)?.squeeze(1)? - Tensor::new(wanted, logits.device())?)?;
            let loss = ((difference.sqr()? * mask)?.sum_all()? / f64::from(rows.max(1.0)))?;
            weighted(&loss, f64::from(rows))
        }
    }
}

fn count(label: i64) -> usize {
    usize::from(label != IGNORED)
}

fn optimizer(number: usize) -> candelabrum::optim::Recipe {
    match number {
        0 => Sgd::new(0.1).momentum(0.9).into(),
        1 => Sgd::new(0.2).into(),
        2 => AdamW::new(0.02).weight_decay(0.1).into(),
        MUON => Muon::new(0.02).into(),
        _ => Adafactor::new(0.02).into(),
    }
}

/// The values of each parameter that can be read.
type Values = Vec<Option<Vec<f32>>>;

/// The parameters after the steps of a case, on each rank, and the notes of rank 0.
fn train(case: &Case) -> Vec<(Values, Vec<String>)> {
    on_ranks(case.ranks, case.servers, |world| {
        let params = Params::new(3);
        let (trained, sizes) = ((case.trained, 0.0), [CLASSES, FEATURES]);
        let model = SumOfLayers::new(&params, trained, "line", MORE, sizes, case.recompute);
        if world.rank() == 0 {
            // The ranks compare what has the values of files.
            model.merge_and_unmerge();
        }
        let recipe = optimizer(case.optimizer);
        let config = DistOptConfig {
            uneven: case.uneven,
            clip_gradients: case.clip.then_some(Clip::Norm(0.2)),
            shard: case.shard,
            first_bucket_bytes: 16,
            overlap_forward: case.overlap_forward,
            overlap: case.outside.penalized.start == 0,
            ..DistOptConfig::default()
        };
        let opt = if case.servers > 0 {
            let store = KvStore::create("dist_sync", world).unwrap();
            DistOpt::with_servers(recipe, &params, store.servers(), config)
        } else {
            let ranks = match &case.hosts {
                Some(hosts) => world.comm().hierarchical(&Mesh::new(hosts.clone())).unwrap(),
                None => world.group(),
            };
            DistOpt::with_config(recipe.build(), &params, ranks, config)
        };
        let mut opt = opt.unwrap();
        let mut joined = false;
        let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let bias = params.get("line.bias").unwrap();
        let twice = params.get("more0.weight").unwrap();
        let kept_tensor = twice.tensor().clone();
        if case.outside.looks && world.rank() + 1 == case.ranks {
            penalty(&params).unwrap();
        }
        let mut kept = None;
        for (step, (labels, parts)) in case.labels.iter().zip(&case.parts).enumerate() {
            let xs = uniform((labels.len(), FEATURES), step as u64, -1.0, 1.0, DType::F32).unwrap();
            let before: usize = parts[..world.rank()].iter().flatten().sum();
            let own = &parts[world.rank()];
            match case.frozen.contains(&step) {
                true => bias.freeze(),
                false => bias.unfreeze(),
            }
            if step == case.frozen.start {
                kept = Some(values(bias.var()));
            }
            if step == case.frozen.end
                && let Some(kept) = &kept
            {
                assert_eq!(&values(bias.var()), kept, "a frozen parameter has changed");
            }
            let count_of = |labels: &[i64]| labels.iter().map(|label| count(*label)).sum::<usize>();
            let end = before + own.iter().sum::<usize>();
            if own.is_empty() {
                opt.join(DistOption::Fp32, 0.0).unwrap();
                joined = true;
                break;
            }
            if case.begins {
                opt.begin_step(count_of(&labels[before..end]) as f64);
            }
            let mut start = before;
            for (number, rows) in own.iter().enumerate() {
                let xs = xs.narrow(0, start, *rows).unwrap();
                let mut logits = model.forward(&xs).unwrap();
                let again = match case.outside.tied {
                    Tied::Not => None,
                    Tied::Fresh => Some(twice.tensor()),
                    Tied::Kept => Some(&kept_tensor),
                };
                if let Some(weight) = again {
                    logits = (logits + xs.matmul(&weight.t().unwrap()).unwrap()).unwrap();
                }
                let whole = loss(case.counts, &logits, &labels[start..start + rows]).unwrap();
                let mut part = whole.clone();
                if case.outside.penalized.contains(&step) {
                    part = (part + penalty(&params).unwrap()).unwrap();
                }
                let part = (part / own.len() as f64).unwrap();
                LossWeight::from_loss(&whole).unwrap().give_to(&part);
                start += rows;
                let last = number + 1 == own.len();
                match last {
                    true => opt.backward_and_update_with(&part, DistOption::Fp32, 0.0).unwrap(),
                    false => opt.accumulate(&part).unwrap(),
                }
            }
        }
        if !joined && case.uneven {
            opt.join(DistOption::Fp32, 0.0).unwrap();
        }
        // The other notes are about the numbers.
        let of_numbers = |note: &String| !note.contains("saves no memory");
        let notes = opt.take_notes().into_iter().filter(of_numbers).collect();
        if let Some(failed) = case.fails_at_end {
            // All have taken the last step.
            world.comm().barrier().unwrap();
            if failed == world.rank() {
                world.abort("this rank fails at its end");
            }
        }
        let values = |param: &Param| {
            let values = param.with_values(|values| values.to_flat());
            let values = values.map(|flat| flat.to_vec::<f32>().unwrap());
            assert!(values.is_ok() || case.fails_at_end.is_some(), "{values:?}");
            values.ok()
        };
        (params.list().iter().map(values).collect(), notes)
    })
}

/// A penalty on all weights, which are read outside of their layers.
fn penalty(params: &Params) -> Result<Tensor> {
    let trained = params.trainable().into_iter();
    let squares = trained.map(|param| param.tensor().sqr()?.sum_all());
    Tensor::stack(&squares.collect::<Result<Vec<_>>>()?, 0)?.sum_all()? * 0.01
}

/// Whether the values of each rank are those that are expected, as far as they can be read.
fn are(read: &[(Values, Vec<String>)], expected: &[(Values, Vec<String>)], all: bool) -> bool {
    read.iter().zip(expected).all(|((read, notes), (values, expected_notes))| {
        let mut pairs = read.iter().zip(values);
        pairs.all(|(read, value)| read == value || (!all && read.is_none()))
            && notes == expected_notes
    })
}

fn check(seed: u64) {
    let case = Case::new(seed);
    let whole = train(&case.whole()).remove(0);
    let ranks = train(&Case { fails_at_end: None, servers: 0, ..case.clone() });
    // What a failed rank keeps of the others' values is an error, and nothing else is wrong.
    let all = case.fails_at_end.is_none();
    if case.servers > 0 {
        let served = train(&case);
        assert!(are(&served, &ranks, all), "seed {seed}: servers change a step: {case:#?}");
    } else if seed.is_multiple_of(2) {
        // Ranks that divide the state of the optimizer make the same bits.
        let shard = match seed.is_multiple_of(4) {
            _ if case.shards_parameters => Shard::Parameters,
            true => Shard::Optimizer,
            false => Shard::Gradients,
        };
        let sharded = train(&case.sharing(shard));
        assert!(are(&sharded, &ranks, all), "seed {seed}: shards change a step: {case:#?}");
        if case.ranks > 1 {
            let case = case.on_hosts(seed);
            let sharded = train(&case.sharing(shard));
            // Hosts with different numbers of ranks have no copies, and the ranks share as without hosts.
            let whole = Case { fails_at_end: None, ..case.clone() };
            let expected = if case.has_even_hosts() { train(&whole) } else { ranks.clone() };
            let of = format!("seed {seed}: shards of hosts change a step: {case:#?}");
            assert!(are(&sharded, &expected, all), "{of}");
        }
    }
    for (rank, (values, notes)) in ranks.iter().enumerate() {
        assert_eq!(values, &ranks[0].0, "seed {seed}: rank {rank} differs from rank 0: {case:?}");
        assert_eq!(notes.len(), whole.1.len(), "seed {seed}: {notes:?} {:?}", whole.1);
    }
    let numbers = |values: &Values| values.iter().flatten().flatten().copied().collect();
    let [ranks, whole]: [Vec<f32>; 2] = [numbers(&ranks[0].0), numbers(&whole.0)];
    let pairs = ranks.iter().zip(&whole);
    // Large numbers differ by their rounding.
    let difference = |a: f32, b: f32| (a - b).abs() / a.abs().max(1.0);
    let worst = pairs.fold(0.0, |worst: f32, (a, b)| worst.max(difference(*a, *b)));
    // Muon makes the small singular values of a gradient up to 484 times larger, and so those that are rounding alone.
    let limit = if case.optimizer == MUON { 1e-3 } else { 2e-5 };
    assert!(worst < limit, "seed {seed}: the steps differ by {worst}: {case:#?}");
}

#[test]
fn a_step_is_the_same_however_its_global_batch_is_divided() {
    for_each_seed("LAW_STEPS", 150, KEPT, check);
}
