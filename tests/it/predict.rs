//! The outputs of a model for all samples, on any number of ranks: in the order of the data, with the bits of one rank.

use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::{Inputs, Result};
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;

use crate::ranks::on_ranks;

/// What a model of the tests does with its inputs.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A perceptron with dropout.
    Net,
    /// Its classes, whose type no collective has.
    Classes,
    /// The mean over the batch: no row for each sample.
    Mean,
    /// As many columns as the first sample says.
    Ragged,
    /// Refuses negative numbers.
    Strict,
}

struct Net {
    kind: Kind,
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        let hidden = self.hidden.forward(xs)?;
        let ys = self.out.forward(&self.dropout.forward(&hidden)?)?;
        let first = xs.get(0)?.get(0)?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        match self.kind {
            Kind::Net => Ok(ys),
            Kind::Classes => ys.argmax(1),
            Kind::Mean => ys.mean(0),
            Kind::Ragged => ys.narrow(1, 0, 1 + first as usize),
            Kind::Strict if first < 0.0 => candle::bail!("a negative number"),
            Kind::Strict => Ok(ys),
        }
    }
}

fn trainer(world: &World, kind: Kind, dtype: DType) -> Trainer<Net> {
    let params = Params::on(1, dtype, &Device::Cpu);
    let root = params.root();
    let model = Net {
        kind,
        hidden: Linear::new(&root.pp("hidden"), 16).activation(Activation::Tanh),
        dropout: Dropout::new(&root.pp("dropout"), 0.5),
        out: Linear::new(&root.pp("out"), 3),
    };
    let mut trainer = Trainer::new(model, DistOpt::new(Sgd::new(0.05), &params, world).unwrap());
    trainer.compile((1, 6)).unwrap();
    trainer
}

fn rows(samples: usize) -> Tensor {
    uniform((samples, 6), 1, -1.0, 1.0, DType::F32).unwrap()
}

fn inputs(samples: usize) -> TensorDataset<Tensor> {
    TensorDataset::single(rows(samples)).unwrap()
}

/// Type, shape and bits of an output.
fn bits(output: &Tensor) -> (DType, Vec<usize>, Vec<u8>) {
    let mut bytes = Vec::new();
    output.write_bytes(&mut bytes).unwrap();
    (output.dtype(), output.dims().to_vec(), bytes)
}

/// The outputs of the model batch by batch, without a trainer.
fn expected(kind: Kind, dtype: DType, samples: usize, batch: usize) -> Tensor {
    let trainer = trainer(&World::single(), kind, dtype);
    trainer.eval();
    let xs = rows(samples).to_dtype(dtype).unwrap();
    let starts = (0..samples).step_by(batch);
    let outputs = starts.map(|start| {
        let batch = xs.narrow(0, start, batch.min(samples - start)).unwrap();
        trainer.model().forward(&batch).unwrap().detach()
    });
    Tensor::cat(&outputs.collect::<Vec<_>>(), 0).unwrap()
}

#[test]
fn every_rank_has_the_outputs_of_one_rank_in_the_order_of_the_data() {
    for (kind, dtype) in
        [(Kind::Net, DType::F32), (Kind::Net, DType::BF16), (Kind::Classes, DType::F32)]
    {
        for samples in [1, 2, 7, 40] {
            let expected = bits(&expected(kind, dtype, samples, 4));
            for ranks in [1, 2, 3, 4] {
                let found = on_ranks(ranks, |world| {
                    let mut trainer = trainer(world, kind, dtype);
                    bits(&trainer.predict(&inputs(samples), 4).unwrap())
                });
                assert!(found.iter().all(|found| *found == expected), "{samples} on {ranks}");
            }
        }
    }
}

#[test]
fn targets_are_left_out_and_layers_get_back_their_mode() {
    let ys = Tensor::zeros(7, DType::U32, &Device::Cpu).unwrap();
    let labelled = TensorDataset::pair(rows(7), ys).unwrap();
    let mut trainer = trainer(&World::single(), Kind::Net, DType::F32);
    let expected = bits(&expected(Kind::Net, DType::F32, 7, 4));
    for training in [true, false] {
        if training {
            trainer.train();
        } else {
            trainer.eval();
        }
        assert_eq!(bits(&trainer.predict(&labelled, 4).unwrap()), expected);
        assert_eq!(trainer.opt().params().is_training(), training);
    }
}

#[test]
fn parts_of_ranks_follow_each_other() {
    // A batch has one sample, so it does not matter where the parts end. 8 samples on 3 ranks are 3, 3 and 2.
    let expected = bits(&expected(Kind::Net, DType::F32, 8, 1));
    for ranks in [1, 2, 3] {
        let found = on_ranks(ranks, |world| {
            let part = Subset::new(inputs(8), world.rank(), ranks, Remainder::Keep).unwrap();
            bits(&trainer(world, Kind::Net, DType::F32).predict(&part, 1).unwrap())
        });
        assert!(found.iter().all(|found| *found == expected), "{ranks}");
    }
}

#[test]
fn ranks_whose_weights_differ_predict_with_their_mean() {
    let ys = Tensor::arange(0_u32, 24, &Device::Cpu).unwrap();
    let ys = (ys.to_dtype(DType::F32).unwrap() / 8.0).unwrap().to_dtype(DType::U32).unwrap();
    let data = TensorDataset::labelled(rows(24), ys.clone()).unwrap();
    let found = on_ranks(2, |world| {
        let mut trainer = trainer(world, Kind::Net, DType::F32);
        let [xs, ys] = [&rows(24), &ys].map(|all| all.narrow(0, 12 * world.rank(), 12).unwrap());
        for _ in 0..3 {
            trainer.train_one_batch(&xs, &ys, DistOption::PartialUpdate, 0.05).unwrap();
        }
        assert!(trainer.opt().may_differ());
        let output = bits(&trainer.predict(&data, 5).unwrap());
        (output, trainer.parameters_sha256().unwrap())
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].1[0], found[0].1[1]);
}

/// The error of each of two ranks.
fn errors<D: Dataset<Batch: Inputs> + Clone>(
    kind: Kind,
    data: impl Fn(&World) -> (D, usize) + Sync,
) -> Vec<String> {
    on_ranks(2, |world| {
        let (data, batch) = data(world);
        let predicted: Result<Tensor> = trainer(world, kind, DType::F32).predict(&data, batch);
        predicted.unwrap_err().to_string()
    })
}

#[test]
fn outputs_that_are_no_tensor_and_ranks_that_differ_are_refused_on_all_ranks() {
    let wide = || {
        // The first batch has one column, the second one two.
        let xs = Tensor::new(&[[0.0_f32; 6], [0.0; 6], [1.0; 6], [1.0; 6]], &Device::Cpu).unwrap();
        TensorDataset::single(xs).unwrap()
    };
    let negative = || {
        let xs = Tensor::new(&[[1.0_f32; 6], [-1.0; 6]], &Device::Cpu).unwrap();
        TensorDataset::single(xs).unwrap()
    };
    type Case = (Vec<String>, &'static str);
    let cases: [Case; 7] = [
        (errors(Kind::Mean, |_| (inputs(8), 4)), "the output of 4 samples has the shape [3]"),
        (errors(Kind::Ragged, |_| (wide(), 1)), "is [1] of f32, of another [2] of f32"),
        (errors(Kind::Ragged, |_| (wide(), 2)), "is [1] of f32, of another [2] of f32"),
        (errors(Kind::Strict, |_| (negative(), 1)), "a negative number"),
        (errors(Kind::Net, |world| (inputs(8), 1 + world.rank())), "the batch size differs"),
        (
            errors(Kind::Net, |world| (inputs(8 + world.rank()), 4)),
            "the samples to predict differs",
        ),
        (errors(Kind::Net, |_| (inputs(8), 0)), "--batch-size 0"),
    ];
    for (errors, expected) in cases {
        assert!(errors.iter().all(|error| error.contains(expected)), "{expected}: {errors:?}");
    }
    let half = |world: &World| {
        let part = Subset::new(inputs(8), world.rank(), 2, Remainder::Keep).unwrap();
        // Of rank 1, nothing is left.
        let left: Vec<u32> = (0..4).filter(|_| world.rank() == 0).collect();
        (Subset::from_samples(part, left).unwrap(), 4)
    };
    assert!(errors(Kind::Net, half).iter().all(|error| error.contains("the dataset is empty")));
}

/// The program of each rank of the test below.
#[test]
fn rank_main() {
    if is_rank() {
        let world = World::from_env().unwrap();
        let mut trainer = trainer(&world, Kind::Net, DType::F32);
        println!("outputs {:?}", bits(&trainer.predict(&inputs(13), 4).unwrap()));
    }
}

#[test]
fn processes_have_the_outputs_of_one_process() {
    let expected = format!("outputs {:?}", bits(&expected(Kind::Net, DType::F32, 13, 4)));
    for output in RanksOf::new(rank_main).run_all_good(3) {
        assert!(output.text.contains(&expected), "{}", output.text);
    }
}
