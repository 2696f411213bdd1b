//! The memory that a forward pass keeps for the backward pass, by layer.
//!
//! ```
//! use candelabrum_nn::layers::{Linear, ReLU};
//! use candelabrum_nn::{FlatGradients, Params, saved};
//! use candle_core::{DType, Device, Module, Tensor};
//!
//! let params = Params::new(0);
//! let (wide, narrow) = (Linear::new(&params.root().pp("wide"), 64), Linear::new(&params.root().pp("narrow"), 1));
//! let xs = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
//! saved::start();
//! let loss = narrow.forward(&wide.forward(&xs)?)?.sum_all()?;
//! saved::measure(&loss, &params);
//! let saved = saved::stop().expect("a backward pass was to begin");
//! // The narrow layer keeps its input: 2 rows of 64 numbers of 4 bytes.
//! assert_eq!(saved.layers[1], ("narrow".to_owned(), 2 * 64 * 4));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! [`FlatGradients::backward`](crate::FlatGradients::backward) measures by itself. A tensor that several operations
//! keep counts once, for the layer that kept it first. Parameters do not count.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use candelabrum_memory::usage;
use candle_core::{CpuStorage, Storage, Tensor};

use crate::Params;
use crate::kernels::scratch;

/// An operation in the graph, as a measurement sees it.
pub(super) trait SavesTensors: Send + Sync {
    /// Calls `f` with each tensor that is kept for the backward pass.
    fn each_kept(&self, f: &mut dyn FnMut(&Tensor));

    /// The bytes that are kept beside these tensors.
    fn other_bytes(&self) -> usize {
        0
    }
}

/// The memory that one forward pass kept when its backward pass began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMemory {
    /// The path of each layer, in the order of the first calls, with its bytes. Operations after the last layer, such
    /// as the loss, have an empty path.
    pub layers: Vec<(String, usize)>,
    /// The bytes that candle's own operations keep beside them.
    pub by_candle: usize,
    /// The bytes of recycled memory that waits for its next use.
    pub idle: usize,
    /// What was [allocated](usage::in_use) then on the device of the loss.
    pub in_use: Option<usize>,
}

impl SavedMemory {
    /// The bytes of all layers and of candle's operations.
    pub fn bytes(&self) -> usize {
        self.by_candle + self.layers.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }
}

thread_local! {
    static RECORD: RefCell<Option<PassRecord>> = const { RefCell::new(None) };
}

/// What a thread's forward pass has done so far.
#[derive(Default)]
struct PassRecord {
    operations: Vec<(Weak<dyn SavesTensors>, String)>,
    /// From this operation on, the layer is not known yet.
    unnamed: usize,
    /// The layers that have ended, in their order.
    layers: Vec<String>,
    /// The largest measurement.
    most: Option<SavedMemory>,
}

/// Starts to measure what this thread's forward passes keep.
pub fn start() {
    RECORD.set(Some(PassRecord::default()));
}

/// Stops. Returns the measurement of the pass that kept most. `None` if no backward pass has begun since [`start`].
pub fn stop() -> Option<SavedMemory> {
    RECORD.take()?.most
}

/// Measures what the operations below `loss` keep now, if this thread measures. `params` are those of the model.
pub fn measure(loss: &Tensor, params: &Params) {
    let params: Vec<Tensor> = params.list().iter().map(|param| param.tensor().clone()).collect();
    measure_beside(loss, params.iter());
}

/// [`measure`] with the tensors of the parameters.
pub(super) fn measure_beside<'a>(loss: &Tensor, params: impl Iterator<Item = &'a Tensor>) {
    RECORD.with_borrow_mut(|record| {
        let Some(record) = record else { return };
        let saved = record.measure(loss, params);
        if record.most.as_ref().is_none_or(|most| most.bytes() <= saved.bytes()) {
            record.most = Some(saved);
        }
        (record.operations, record.unnamed) = (Vec::new(), 0);
    });
}

/// An operation of this thread is in the graph now.
pub(super) fn begun(operation: &Arc<impl SavesTensors + 'static>) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            let operation: Arc<dyn SavesTensors> = Arc::clone(operation) as _;
            record.operations.push((Arc::downgrade(&operation), String::new()));
        }
    });
}

/// A layer has ended: the operations since the layer before are its own.
pub(crate) fn layer_ends(path: &str) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            record.name(path);
            record.layers.push(path.to_owned());
        }
    });
}

/// The layers of this thread that have ended. For [`block_ends`].
pub(super) fn ended_layers() -> usize {
    RECORD.with_borrow(|record| record.as_ref().map_or(0, |record| record.layers.len()))
}

/// A block that is computed again has ended, which began after so many layers. It is known by what the paths of its
/// layers have in common.
pub(super) fn block_ends(before: usize) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            let path = common_path(record.layers.get(before..).unwrap_or_default());
            record.name(&path);
        }
    });
}

/// The path that is above all of these.
fn common_path(paths: &[String]) -> String {
    let Some((first, others)) = paths.split_first() else { return String::new() };
    let mut common: Vec<&str> = first.split('.').collect();
    for path in others {
        let same = common.iter().zip(path.split('.')).take_while(|(one, other)| **one == *other);
        let same = same.count();
        common.truncate(same);
    }
    common.join(".")
}

impl PassRecord {
    fn name(&mut self, path: &str) {
        for (_, layer) in &mut self.operations[self.unnamed..] {
            path.clone_into(layer);
        }
        self.unnamed = self.operations.len();
    }

    fn measure<'a>(&self, loss: &Tensor, params: impl Iterator<Item = &'a Tensor>) -> SavedMemory {
        let in_use = usage::in_use(loss.device());
        let mut counted: HashSet<usize> = params.map(|param| storage_of(param).0).collect();
        let mut count = |tensor: &Tensor| {
            let (address, bytes) = storage_of(tensor);
            if counted.insert(address) { bytes } else { 0 }
        };
        let (mut layers, mut places) = (Vec::<(String, usize)>::new(), HashMap::new());
        for (operation, layer) in &self.operations {
            let Some(operation) = operation.upgrade() else { continue };
            let mut bytes = operation.other_bytes();
            operation.each_kept(&mut |tensor| bytes += count(tensor));
            let place = *places.entry(layer).or_insert_with(|| {
                layers.push((layer.clone(), 0));
                layers.len() - 1
            });
            layers[place].1 += bytes;
        }
        layers.retain(|(_, bytes)| *bytes > 0);
        let of_candle = loss.sorted_nodes().into_iter().filter(|node| !node.is_variable());
        let by_candle = of_candle.map(count).sum();
        SavedMemory { layers, by_candle, idle: scratch::idle_bytes(), in_use }
    }
}

/// The address of a tensor's memory, and its bytes. Of memory on a GPU those up to the tensor's last element.
fn storage_of(tensor: &Tensor) -> (usize, usize) {
    let (storage, layout) = tensor.storage_and_layout();
    let bytes = match &*storage {
        Storage::Cpu(storage) => bytes_of(storage),
        _ => (layout.start_offset() + layout.shape().elem_count()) * tensor.dtype().size_in_bytes(),
    };
    (&raw const *storage as usize, bytes)
}

fn bytes_of(storage: &CpuStorage) -> usize {
    match storage {
        CpuStorage::U8(values) => size_of_val(&values[..]),
        CpuStorage::U32(values) => size_of_val(&values[..]),
        CpuStorage::I16(values) => size_of_val(&values[..]),
        CpuStorage::I32(values) => size_of_val(&values[..]),
        CpuStorage::I64(values) => size_of_val(&values[..]),
        CpuStorage::BF16(values) => size_of_val(&values[..]),
        CpuStorage::F16(values) => size_of_val(&values[..]),
        CpuStorage::F32(values) => size_of_val(&values[..]),
        CpuStorage::F64(values) => size_of_val(&values[..]),
        CpuStorage::F8E4M3(values) => size_of_val(&values[..]),
        CpuStorage::F6E2M3(values)
        | CpuStorage::F6E3M2(values)
        | CpuStorage::F4(values)
        | CpuStorage::F8E8M0(values) => values.len(),
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_memory::{ElementType, FlatTensor};
    use candle_core::{DType, Device, Module, Result, Var};

    use super::*;
    use crate::layers::{Blocks, Linear};
    use crate::ops::gelu;
    use crate::{BucketPlan, FlatGradients, Recompute};

    /// The bytes of 3 rows of 64 features.
    const ROWS: usize = 4 * 3 * 64;

    /// Two blocks of two layers, and what they keep of 3 rows.
    fn saved(recompute: Recompute) -> Result<SavedMemory> {
        let params = Params::new(0);
        params.set_recompute(recompute);
        let scope = params.root();
        let blocks = (0..2).map(|number| {
            let scope = scope.pp("blocks").pp(number);
            let [up, down] = ["up", "down"].map(|name| Linear::new(&scope.pp(name), 64));
            move |xs: &Tensor| down.forward(&gelu(&up.forward(xs)?)?)
        });
        let blocks = Blocks::new(&scope, blocks);
        let xs = Tensor::ones((3, 64), DType::F32, &Device::Cpu)?;
        start();
        let loss = blocks.forward(&xs)?.sum_all()?;
        measure(&loss, &params);
        Ok(stop().expect("it was measured"))
    }

    fn named(layers: &[(&str, usize)]) -> Vec<(String, usize)> {
        layers.iter().map(|(path, bytes)| ((*path).to_owned(), *bytes)).collect()
    }

    #[test]
    fn each_layer_keeps_its_input_and_a_tensor_counts_once() -> Result<()> {
        let saved = saved(Recompute::None)?;
        // `up` keeps its input, and `down` its own and that of the activation before it, which no layer names.
        let expected = named(&[
            ("blocks.0.up", ROWS),
            ("blocks.0.down", 2 * ROWS),
            ("blocks.1.up", ROWS),
            ("blocks.1.down", 2 * ROWS),
        ]);
        assert_eq!(saved.layers, expected);
        assert_eq!(saved.bytes(), 6 * ROWS + saved.by_candle);
        Ok(())
    }

    #[test]
    fn a_block_that_is_computed_again_keeps_its_input_under_its_own_path() -> Result<()> {
        let all = saved(Recompute::All)?;
        assert_eq!(all.layers, named(&[("blocks.0", ROWS), ("blocks.1", ROWS)]));
        let half = saved(Recompute::Half)?;
        let expected = [("blocks.0", ROWS), ("blocks.1.up", ROWS), ("blocks.1.down", 2 * ROWS)];
        assert_eq!(half.layers, named(&expected));
        Ok(())
    }

    #[test]
    fn operations_of_candle_count_without_a_layer() -> Result<()> {
        let xs = Var::ones((3, 64), DType::F32, &Device::Cpu)?;
        start();
        let loss = xs.tanh()?.sqr()?.sum_all()?;
        measure(&loss, &Params::new(0));
        let saved = stop().expect("it was measured");
        // The results of both operations, and the sum.
        assert_eq!((saved.layers.len(), saved.by_candle), (0, 2 * ROWS + 4));
        Ok(())
    }

    #[test]
    fn a_backward_pass_measures_by_itself_and_parameters_do_not_count() -> Result<()> {
        let params = Params::new(0);
        let linear = Linear::new(&params.root().pp("a"), 64);
        let xs = Tensor::ones((3, 64), DType::F32, &Device::Cpu)?;
        linear.forward(&xs)?;
        let (list, mut plan) = (params.list(), BucketPlan::default());
        list.iter().enumerate().for_each(|(i, param)| plan.push(i, param.element_count()));
        let bucket = FlatTensor::zeros(ElementType::F32, plan.len);
        let mut gradients = FlatGradients::new(list, vec![plan], vec![bucket])?;
        start();
        gradients.backward(&linear.forward(&xs)?.sum_all()?)?;
        assert_eq!(stop().map(|saved| saved.layers), Some(named(&[("a", ROWS)])));
        gradients.backward(&linear.forward(&xs)?.sum_all()?)?;
        assert_eq!(stop(), None);
        Ok(())
    }

    #[test]
    fn the_common_path_ends_before_the_first_difference() {
        let common = |paths: &[&str]| {
            common_path(&paths.iter().map(|&path| path.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(common(&["a.b.c", "a.b.d"]), "a.b");
        assert_eq!(common(&["a.b", "a.bc"]), "a");
        assert_eq!([common(&["a.b"]), common(&["a", "b"]), common(&[])], ["a.b", "", ""]);
    }
}
