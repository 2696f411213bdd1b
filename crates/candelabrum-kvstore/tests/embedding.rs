//! The embedding on servers: it trains as a dense one, and on several workers as on one.
//!
//! Its workers and servers are processes of this program.

#![expect(clippy::unwrap_used, reason = "a test")]

use candelabrum_dist::{DistOpt, World};
use candelabrum_kvstore::{Error, KvStore, RowInit, Server, SparseEmbedding};
use candelabrum_nn::layers::Embedding;
use candelabrum_nn::{Params, seed};
use candelabrum_optim::Sgd;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, IndexOp, Layout, Module, Result as CandleResult, Shape,
    Tensor,
};

const ROWS: usize = 40;
const DIM: usize = 3;
const NORMAL: RowInit = RowInit::Normal { std: 1.0, seed: 7 };

fn local() -> KvStore {
    KvStore::create("local", &World::single()).unwrap()
}

fn embedding(store: &KvStore) -> SparseEmbedding {
    SparseEmbedding::new(store, "words", ROWS, DIM, NORMAL).unwrap()
}

fn indices(rows: &[u32]) -> Tensor {
    Tensor::new(rows, &Device::Cpu).unwrap()
}

fn all() -> Tensor {
    Tensor::arange(0, ROWS as u32, &Device::Cpu).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The whole table, row by row.
fn table(layer: &SparseEmbedding) -> Vec<f32> {
    numbers(&layer.lookup(&all()).unwrap())
}

/// Some indices of a step, with duplicates, of `below` rows.
fn batch(step: usize, len: usize, below: usize) -> Vec<u32> {
    let numbers = (0..len).map(|i| seed::nth(seed::derive(3, "batch"), (step * 1000 + i) as u64));
    numbers.map(|number| (number % below as u64) as u32).collect()
}

/// A loss with another gradient at each position: (..) -> ().
fn loss(layer: &dyn Module, indices: &Tensor) -> CandleResult<Tensor> {
    let ys = layer.forward(indices)?.reshape(((), DIM))?; // (N, D)
    let scale = Tensor::arange(1.0, ys.dim(0)? as f32 + 1.0, &Device::Cpu)?.unsqueeze(1)?;
    ys.sin()?.broadcast_mul(&scale)?.sum_all()
}

fn pushes(store: &KvStore) -> u64 {
    store.stats().unwrap().iter().map(|server| server.pushes[store.rank()]).max().unwrap()
}

/// Trains an embedding on a server and a dense one with the same table by the same loss, and compares
/// all rows after each step.
fn assert_twins(loss: impl Fn(&dyn Module, usize) -> CandleResult<Tensor>) {
    let store = local();
    let layer = embedding(&store);
    store.set_optimizer(Sgd::new(0.05), 1.0).unwrap();
    let params = Params::new(0);
    let dense = Embedding::new(&params.root(), ROWS, DIM);
    dense.forward(&all()).unwrap();
    let weight = params.get("weight").unwrap();
    weight.set(&layer.lookup(&all()).unwrap()).unwrap();
    let mut opt = DistOpt::new(Sgd::new(0.05), &params, &World::single()).unwrap();
    for step in 0..6 {
        let of_sparse = loss(&layer, step).unwrap();
        let of_dense = loss(&dense, step).unwrap();
        assert_eq!(numbers(&of_sparse), numbers(&of_dense), "step {step}");
        of_sparse.backward().unwrap();
        opt.backward_and_update(&of_dense).unwrap();
        assert_eq!(table(&layer), numbers(weight.tensor()), "step {step}");
        assert_eq!(pushes(&store), step as u64 + 1);
    }
}

#[test]
fn it_trains_as_a_dense_embedding_bit_for_bit() {
    assert_twins(|layer, step| {
        let indices = indices(&batch(step, 24, ROWS)).reshape((4, 6))?;
        assert_eq!(layer.forward(&indices)?.dims(), [4, 6, DIM]);
        loss(layer, &indices)
    });
}

#[test]
fn several_uses_in_one_step_are_one_push() {
    assert_twins(|layer, step| {
        // The second use has few rows, and the third one has none in some steps.
        let [a, b, c] = [(24, ROWS), (5, 7), (step % 2, 3)]
            .map(|(len, below)| indices(&batch(step + 100 * len, len, below)));
        (loss(layer, &a)?.sin()? + loss(layer, &b)?)? + loss(layer, &c)?
    });
}

#[test]
fn a_forward_pass_alone_pushes_nothing() {
    let store = local();
    let layer = embedding(&store);
    let kept = layer.forward(&indices(&[1, 2])).unwrap();
    assert_eq!(store.stats().unwrap()[0].rows, 2);
    let before = table(&layer);
    drop(layer.forward(&indices(&[3])).unwrap());
    layer.lookup(&indices(&[4])).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!((pushes(&store), table(&layer)), (0, before.clone()));
    // The forward passes without a backward pass do not disturb one that has one.
    store.set_optimizer(Sgd::new(1.0), 1.0).unwrap();
    kept.sum_all().unwrap().backward().unwrap();
    let mut expected = before;
    expected[DIM..3 * DIM].iter_mut().for_each(|x| *x -= 1.0);
    assert_eq!((pushes(&store), table(&layer)), (1, expected));
}

#[test]
fn a_batch_without_indices_is_a_push_without_rows() {
    let store = local();
    let layer = embedding(&store);
    let before = table(&layer);
    let none = Tensor::zeros((2, 0), DType::U32, &Device::Cpu).unwrap();
    let ys = layer.forward(&none).unwrap();
    assert_eq!(ys.dims(), [2, 0, DIM]);
    ys.sum_all().unwrap().backward().unwrap();
    layer.push_nothing().unwrap();
    assert_eq!((pushes(&store), table(&layer)), (2, before));
}

#[test]
fn a_prefetch_has_the_pushes_before_it() {
    let store = local();
    let layer = embedding(&store);
    store.set_optimizer(Sgd::new(1.0), 1.0).unwrap();
    let batch = indices(&[5, 9, 5]);
    let old = numbers(&layer.lookup(&batch).unwrap());
    let early = layer.prefetch(&batch).unwrap();
    assert_eq!(early.rows(), 2);
    drop(layer.prefetch(&indices(&[0, 39])).unwrap());
    layer.forward(&batch).unwrap().sum_all().unwrap().backward().unwrap();
    let late = layer.prefetch(&batch).unwrap().wait().unwrap();
    assert_eq!(numbers(&early.wait().unwrap()), old);
    let counts = [2.0, 1.0, 2.0].map(|count| [count; DIM]).concat();
    let new: Vec<f32> = old.iter().zip(counts).map(|(old, count)| old - count).collect();
    assert_eq!(numbers(&late), new);
    late.sum_all().unwrap().backward().unwrap();
    assert_eq!(pushes(&store), 2);
}

#[test]
fn every_integer_of_the_table_is_an_index_and_nothing_else() {
    let layer = embedding(&local());
    let rows = indices(&[39, 0, 39]);
    let expected = numbers(&layer.lookup(&rows).unwrap());
    for dtype in [DType::U8, DType::I64] {
        let same = layer.lookup(&rows.to_dtype(dtype).unwrap()).unwrap();
        assert_eq!(numbers(&same), expected);
    }
    // Indices that do not lie one after the other in memory.
    let pairs = Tensor::new(&[[39_u32, 1], [0, 1], [39, 1]], &Device::Cpu).unwrap();
    let column = layer.lookup(&pairs.i((.., 0)).unwrap()).unwrap();
    assert_eq!(numbers(&column), expected);

    let error = |indices: Tensor| Error::from(layer.forward(&indices).unwrap_err());
    let float = Tensor::new(&[1_f32], &Device::Cpu).unwrap();
    assert!(error(float).to_string().contains("is f32: it is u8, u32 or i64"));
    for row in [-1, ROWS as i64, i64::MAX] {
        match error(Tensor::new(&[0, row], &Device::Cpu).unwrap()) {
            Error::Row { row: found, rows: ROWS, .. } => assert_eq!(found, row),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_error_of_the_push_comes_out_of_the_backward_pass_with_its_type() {
    let store = local();
    let layer = embedding(&store);
    let ys = layer.forward(&indices(&[3])).unwrap();
    let error = (ys * f64::INFINITY).unwrap().sum_all().unwrap().backward().unwrap_err();
    match Error::from(error) {
        Error::NotFinite { key, position: 0, .. } => assert_eq!(&key, layer.key()),
        other => panic!("{other}"),
    }
    assert_eq!(pushes(&store), 0);
}

/// An operation without a backward.
struct Fails;

impl CustomOp1 for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[test]
fn a_failed_pass_leaves_nothing_for_the_next_one() {
    let store = local();
    let layer = embedding(&store);
    let before = table(&layer);
    let fails = layer.forward(&indices(&[1])).unwrap().apply_op1(Fails).unwrap();
    let good = layer.forward(&indices(&[2])).unwrap();
    // candle visits the right operand first.
    let loss = (fails + good).unwrap().sum_all().unwrap();
    assert!(loss.backward().unwrap_err().to_string().contains("fails"));
    assert_eq!(pushes(&store), 0);
    store.set_optimizer(Sgd::new(1.0), 1.0).unwrap();
    layer.forward(&indices(&[4])).unwrap().sum_all().unwrap().backward().unwrap();
    let mut expected = before;
    expected[4 * DIM..5 * DIM].iter_mut().for_each(|x| *x -= 1.0);
    assert_eq!(table(&layer), expected);
}

/// The indices of a worker in a step. Both workers have as many.
fn share(step: usize, worker: usize) -> Vec<u32> {
    // In step 1 all rows are on the first of two servers.
    let below = if step == 1 { ROWS / 4 } else { ROWS };
    batch(step + 10 * worker, 6, below)
}

/// Two uses of the layer, and in step 2 none on worker 1.
fn loss_of(layer: &SparseEmbedding, step: usize, worker: usize) -> CandleResult<Option<Tensor>> {
    if (step, worker) == (2, 1) {
        return Ok(None);
    }
    let rows = share(step, worker);
    let (a, b) = rows.split_at(4);
    (loss(layer, &indices(a))? + loss(layer, &indices(b))?).map(Some)
}

/// Trains by a mean over two workers, and compares with one process that has both shares.
fn train_in_rounds(world: &World) {
    let sgd = || Sgd::new(0.05);
    let alone = local();
    alone.set_optimizer(sgd(), 2.0).unwrap();
    let expected = embedding(&alone);

    let store = KvStore::create("dist_sync", world).unwrap();
    let layer = embedding(&store);
    store.set_optimizer(sgd(), 2.0).unwrap();
    assert_eq!(table(&layer), table(&expected), "first values do not depend on the servers");
    for step in 0..5 {
        match loss_of(&layer, step, store.rank()).unwrap() {
            Some(loss) => drop(loss.backward().unwrap()),
            None => layer.push_nothing().unwrap(),
        }
        let both = [0, 1].map(|worker| loss_of(&expected, step, worker).unwrap());
        let both = both.into_iter().flatten().reduce(|a, b| (a + b).unwrap()).unwrap();
        both.backward().unwrap();
        for (x, y) in table(&layer).iter().zip(table(&expected)) {
            assert!((x - y).abs() < 1e-6, "step {step}: {x}, expected {y}");
        }
    }
    assert_eq!(pushes(&store), 5);
    let stats = store.stats().unwrap();
    assert_eq!(stats.iter().map(|server| server.rows).sum::<u64>(), ROWS as u64);
    assert!(stats.iter().all(|server| server.peak_memory > 1 << 20), "{stats:?}");
}

/// Trains by a linear loss, so that the order of the pushes does not matter.
fn train_without_rounds(world: &World) {
    let store = KvStore::create("dist_async", world).unwrap();
    let layer = embedding(&store);
    store.set_optimizer(Sgd::new(0.5), 1.0).unwrap();
    let mut expected = table(&layer);
    store.barrier().unwrap();
    for step in 0..20 {
        let rows = |worker: usize| batch(step + 100 * worker, 6, ROWS);
        for row in (0..store.num_workers()).flat_map(rows) {
            let place = row as usize * DIM;
            expected[place..place + DIM].iter_mut().for_each(|x| *x -= 0.5);
        }
        let ys = layer.forward(&indices(&rows(store.rank()))).unwrap();
        ys.sum_all().unwrap().backward().unwrap();
    }
    table(&layer); // all pushes of this worker have been applied
    store.barrier().unwrap();
    for (x, y) in table(&layer).iter().zip(expected) {
        assert!((x - y).abs() < 1e-4, "{x}, expected {y}");
    }
}

/// An infinite gradient on one worker: its error has its type, and the other worker hears of it.
fn fail_on_one_worker(world: &World) {
    let factor = if world.rank() == 1 { f64::INFINITY } else { 1.0 };
    // A store that is dropped before the failure is known says goodbye.
    let store = KvStore::create("dist_sync", world).unwrap();
    let train = || -> Result<Tensor, Error> {
        let layer = SparseEmbedding::new(&store, "words", ROWS, DIM, NORMAL)?;
        (layer.forward(&indices(&[3]))? * factor)?.sum_all()?.backward()?;
        layer.lookup(&all())
    };
    // The other worker may hear of it in any operation.
    let error = train().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rank 1: the value of the key `words` is inf"), "{text}");
    if world.rank() == 1 {
        assert!(matches!(error, Error::NotFinite { .. }), "{text}");
        world.abort(&text);
    } else {
        assert!(error.is_echo(), "{text}");
    }
}

const CASE: &str = "KVSTORE_CASE";

#[test]
fn rank_main() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let case = std::env::var(CASE).unwrap();
    if world.is_server() {
        let served = Server::new().run(&world);
        assert_eq!(served.is_err(), case == "fails", "{served:?}");
        return;
    }
    match case.as_str() {
        "rounds" => train_in_rounds(&world),
        "no rounds" => train_without_rounds(&world),
        _ => fail_on_one_worker(&world),
    }
}

/// With rounds, two workers are one process with both batches, and without them every push is in the table. A push
/// that fails on one worker ends the others.
#[test]
fn workers_and_servers_train_one_table() {
    for (case, servers) in [("rounds", 1), ("rounds", 2), ("no rounds", 2), ("fails", 2)] {
        let ranks = RanksOf::new(rank_main).env(CASE, case).env("CANDELABRUM_SERVERS", servers);
        ranks.run_all_good(2 + servers);
    }
}
