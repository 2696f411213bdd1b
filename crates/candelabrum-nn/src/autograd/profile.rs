//! The time of a training step by operation: forward and backward of every fused operation, and
//! candle's backward of its own operations between them.
//!
//! ```
//! use candelabrum_nn::ops::{profile, relu};
//! use candle_core::{Device, Tensor, Var};
//!
//! let xs = Var::from_tensor(&Tensor::new(&[-1f32, 1.], &Device::Cpu)?)?;
//! profile::start();
//! let ys = relu(&relu(&xs)?.narrow(0, 1, 1)?.tanh()?)?;
//! profile::backward(&ys.sum_all()?)?;
//! let profile = profile::stop();
//! assert_eq!((profile.operations[0].name, profile.operations[0].calls), ("relu", 1));
//! assert!(profile.candle.iter().any(|region| region.name == "element-wise, narrow"));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! The times of fused operations are exact. candle calls nobody for its own operations, but it calls
//! each fused operation, and the order in which it visits the graph is known
//! ([`Tensor::sorted_nodes`]). So the time between two of these calls is exact for the *region* of
//! candle's operations between them ([`CandleRegion`]): where a region has one operation, it is the time of
//! that operation. It includes the zeros and additions that candle spends on the gradients of the
//! region and on those that the fused operation before it has handed to candle.
//!
//! The same regions are spans of the timeline, as those of fused operations are.
//!
//! candle also does not tell which operation has made a tensor. Views (`narrow`, `transpose`,
//! `reshape`, `broadcast_as`) share memory with their input, so their names are exact, but a `reshape`
//! that has copied is "other". The remaining names are inferred from shapes: "matmul" if the inputs and
//! the result have the shapes of a product, "element-wise" if they all have one shape (also a copy by
//! `contiguous`, and a product of square matrices), "reduction" if there are fewer elements than in the
//! input, "other" otherwise (`cat`, `index_select`).

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{Result, Storage, Tensor, TensorId};
use tracing::span::EnteredSpan;

/// What was measured between [`start`] and [`stop`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The fused operations, in the order of their first calls.
    pub operations: Vec<ProfileRow>,
    /// candle's own operations in backward passes ([`backward`], or those of
    /// [`FlatGradients`](crate::FlatGradients)), in the order of their first visits.
    pub candle: Vec<CandleRegion>,
}

/// candle's backward of its own operations between two calls of fused operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandleRegion {
    /// The operations in the order of the backward pass: `element-wise, narrow`. `no operation` for
    /// what candle does between two fused operations, and before the first one: it orders the graph,
    /// and adds up tokens and the gradients of tensors that it knows.
    pub name: String,
    /// The shape of the first operation's result. Empty if there is none.
    pub output: Vec<usize>,
    /// The number of visits.
    pub calls: u64,
    /// Time of all visits.
    pub time: Duration,
}

/// The cost of all calls of one operation with one shape of result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRow {
    /// The operation: `conv2d`.
    pub name: &'static str,
    /// The shape of its result.
    pub output: Vec<usize>,
    /// The number of forwards.
    pub calls: u64,
    /// Time of all forwards.
    pub forward: Duration,
    /// Time of all backwards.
    pub backward: Duration,
}

/// The pass in which an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfilePhase {
    Forward,
    Backward,
}

thread_local! {
    static PROFILE: RefCell<Option<Profile>> = const { RefCell::new(None) };
    /// The backward pass that is being measured.
    static PASS: RefCell<Option<ProfiledPass>> = const { RefCell::new(None) };
    /// The last graph of which a pass was measured.
    static LAST: RefCell<ProfiledGraph> = RefCell::default();
}

/// Starts to measure the operations that this thread calls.
pub fn start() {
    PROFILE.set(Some(Profile::default()));
}

/// Stops measuring. Returns the measurements since [`start`].
pub fn stop() -> Profile {
    PROFILE.take().unwrap_or_default()
}

/// candle's backward pass from `loss`, with the time of its own operations, if a profile is being
/// measured or a subscriber of `tracing` (a timeline) wants the spans of operations. A pass that fails
/// counts as far as it has come.
///
/// # Errors
/// Those of [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    let traced = tracing::span_enabled!(target: "candelabrum::op", tracing::Level::TRACE);
    if PROFILE.with_borrow(Option::is_none) && !traced {
        return loss.backward();
    }
    let nodes = loss.sorted_nodes();
    let (names, is_called) = known_of(&nodes);
    let visited = nodes.iter().zip(names).filter(|(node, _)| !node.is_variable());
    let visited: Vec<_> = visited.map(|(node, name)| (name, node.dims().to_vec())).collect();
    let order = nodes.iter().filter(|node| !node.is_variable()).map(|node| node.id()).zip(0..);
    let order = order.collect();
    let (since, span) = (Instant::now(), candles_span());
    let pass = ProfiledPass { visited, order, is_called, done: 0, since, span };
    let outer = PASS.replace(Some(pass));
    let result = loss.backward();
    let pass = PASS.replace(outer);
    if let (Some(mut pass), Ok(_)) = (pass, &result) {
        pass.end_region(pass.visited.len());
        LAST.with_borrow_mut(|last| last.is_called = pass.is_called);
    }
    result
}

/// A backward pass that is being measured.
struct ProfiledPass {
    /// Name and shape of each node, in the order in which candle visits them.
    visited: Vec<(&'static str, Vec<usize>)>,
    order: HashMap<TensorId, usize>,
    /// By node: whether it is a fused operation, as far as an earlier pass has shown.
    is_called: HashSet<usize>,
    /// The number of nodes before the present region, and the time when it began.
    done: usize,
    since: Instant,
    span: Option<EnteredSpan>,
}

impl ProfiledPass {
    /// Counts the region that ends before node number `end`.
    fn end_region(&mut self, end: usize) {
        let time = self.since.elapsed();
        let region = self.visited.get(self.done..end).unwrap_or_default();
        let names: Vec<&str> = region.iter().map(|(name, _)| *name).collect();
        let name = if names.is_empty() { "no operation".to_owned() } else { names.join(", ") };
        if let Some(span) = self.span.take() {
            span.record("name", format!("candle: {name}"));
        }
        let output = region.first().map_or_else(Vec::new, |(_, dims)| dims.clone());
        PROFILE.with_borrow_mut(|profile| {
            let Some(Profile { candle, .. }) = profile else { return };
            let same = |region: &CandleRegion| region.name == name && region.output == output;
            match candle.iter().position(same) {
                Some(index) => {
                    candle[index].calls += 1;
                    candle[index].time += time;
                }
                None => candle.push(CandleRegion { name, output, calls: 1, time }),
            }
        });
    }
}

/// A span whose name is recorded when the region ends.
fn candles_span() -> Option<EnteredSpan> {
    let name = tracing::field::Empty;
    let span = tracing::trace_span!(target: "candelabrum::op", "op", name, phase = ?ProfilePhase::Backward);
    (!span.is_disabled()).then(|| span.entered())
}

/// Runs `work`, the backward of a custom operation whose result is `node`.
pub(crate) fn called<R>(node: &Tensor, work: impl FnOnce() -> R) -> R {
    let Some(mut pass) = PASS.take() else { return work() };
    let number = pass.order.get(&node.id()).copied();
    if let Some(number) = number {
        pass.end_region(number);
    }
    PASS.set(Some(pass));
    let result = work();
    PASS.with_borrow_mut(|pass| {
        if let (Some(pass), Some(number)) = (pass, number) {
            pass.is_called.insert(number);
            (pass.done, pass.since) = (number + 1, Instant::now());
            // A timeline needs no span where nothing is to be done.
            let is_region = !pass.is_called.contains(&pass.done);
            pass.span = if is_region { candles_span() } else { None };
        }
    });
    result
}

/// By node: shape and strides, and the number of the first node with the same memory. Graphs with one
/// signature have the same names.
type Signature = Vec<(Vec<usize>, Vec<usize>, usize)>;

/// What is known of a graph. That of the last one is kept, because a training step has the graph of the
/// step before.
#[derive(Default)]
struct ProfiledGraph {
    signature: Signature,
    /// By node: the operation that has made it.
    names: Vec<&'static str>,
    is_called: HashSet<usize>,
}

/// By node: the name of the operation that has made it. And the nodes that are known as fused operations.
fn known_of(nodes: &[&Tensor]) -> (Vec<&'static str>, HashSet<usize>) {
    let mut first = HashMap::new();
    let signature: Signature = (nodes.iter().enumerate())
        .map(|(number, node)| {
            let shared = *first.entry(memory(node)).or_insert(number);
            (node.dims().to_vec(), node.stride().to_vec(), shared)
        })
        .collect();
    LAST.with_borrow_mut(|last| {
        if last.signature != signature {
            let names = nodes.iter().map(|node| name(node)).collect();
            *last = ProfiledGraph { signature, names, is_called: HashSet::new() };
        }
        (last.names.clone(), last.is_called.clone())
    })
}

/// The name of the operation that has made `node`, as the documentation of this module says.
fn name(node: &Tensor) -> &'static str {
    let below = node.sorted_nodes();
    let (Some(&input), false) = (below.get(1), node.is_variable()) else { return "other" };
    if memory(input) == memory(node) {
        return view_name(input, node);
    }
    let known: HashSet<TensorId> = input.sorted_nodes().iter().map(|node| node.id()).collect();
    let other = below[1..].iter().find(|node| !known.contains(&node.id()));
    let (n, m) = (node.dims(), input.dims());
    match other.map(|other| other.dims()) {
        Some(other) if m == n && other == n => "element-wise",
        Some(other) if is_product(other, m, n) || is_product(m, other, n) => "matmul",
        Some(_) => "other",
        None if m == n => "element-wise",
        None if node.elem_count() < input.elem_count() => "reduction",
        None if m.len() == n.len() && differ_once(m, n) && n.len() >= 2 => "matmul or cat",
        None => "other",
    }
}

fn view_name(input: &Tensor, node: &Tensor) -> &'static str {
    let dims = |tensor: &Tensor| {
        let dims = tensor.dims().iter().copied().zip(tensor.stride().iter().copied());
        let mut dims: Vec<_> = dims.collect();
        dims.sort_unstable();
        dims
    };
    match node.elem_count().cmp(&input.elem_count()) {
        std::cmp::Ordering::Less => "narrow",
        std::cmp::Ordering::Greater => "broadcast_as",
        std::cmp::Ordering::Equal if dims(input) == dims(node) => "transpose",
        std::cmp::Ordering::Equal => "reshape",
    }
}

/// Whether (.., m, k) times (.., k, n) is (.., m, n).
fn is_product(left: &[usize], right: &[usize], product: &[usize]) -> bool {
    match (left, right, product) {
        ([a @ .., m, k], [b @ .., l, n], [c @ .., p, q]) => {
            a == b && b == c && k == l && m == p && n == q
        }
        _ => false,
    }
}

fn differ_once(left: &[usize], right: &[usize]) -> bool {
    left.iter().zip(right).filter(|(left, right)| left != right).count() == 1
}

/// The address of a tensor's memory.
fn memory(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}

/// Runs `work` in its own span, and adds its time to the profile if one is being measured.
pub(crate) fn timed<R>(
    phase: ProfilePhase,
    name: &'static str,
    output: &[usize],
    work: impl FnOnce() -> R,
) -> R {
    let span = tracing::trace_span!(target: "candelabrum::op", "op", name, ?phase, ?output);
    let _span = span.entered();
    if PROFILE.with_borrow(Option::is_none) {
        return work();
    }
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    PROFILE.with_borrow_mut(|profile| {
        let Some(Profile { operations: rows, .. }) = profile else { return };
        let same = |row: &ProfileRow| row.name == name && row.output == output;
        let index = rows.iter().position(same).unwrap_or_else(|| {
            let (output, zero) = (output.to_vec(), Duration::ZERO);
            rows.push(ProfileRow { name, output, calls: 0, forward: zero, backward: zero });
            rows.len() - 1
        });
        match phase {
            ProfilePhase::Forward => {
                rows[index].calls += 1;
                rows[index].forward += elapsed;
            }
            ProfilePhase::Backward => rows[index].backward += elapsed,
        }
    });
    result
}
