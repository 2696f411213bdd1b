//! `bench-player problem`: the batches of a network's own data, as a file for all contenders.
//!
//! Digits are MNIST, small images are CIFAR-10, and texts are the sentence polarity dataset of Pang and Lee (ACL 2005),
//! 10,662 sentences of film reviews. Where there are no images, synthetic ones have their shapes.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use candelabrum::datasets::{
    Batch, Dataset, DistributedSampler, ImageSet, LabelledTexts, Pass, Remainder, SamplerConfig,
    TextDataset, TextEncoding, TextOptions, Vocabulary,
};
use candle_core::Tensor;

use crate::networks::{self, InputKind, Network};
use crate::problem::{ProblemBatches, TrainingProblem};
use crate::sizes::{LSTM, NetworkSizes, TEXT};

/// The words of the vocabulary occur so often at least.
const LEAST: usize = 2;

/// The share of the texts that are not cut.
const WHOLE: f64 = 0.95;

/// The characters of a text, of which the last tenth is for the evaluation.
const CHARACTERS: usize = 400_000;

/// The test images of an evaluation.
const TEST_IMAGES: usize = 1_000;

/// Write the batches of a network's own data to a file
#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    #[arg(long, value_parser = networks::find)]
    network: &'static Network,
    #[arg(long)]
    batch_size: NonZeroUsize,
    /// Batches to train on; epochs follow each other, each in another order
    #[arg(long)]
    steps: NonZeroUsize,
    /// The folder of MNIST, of CIFAR-10 or of rt-polarity [default: synthetic images]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The seed of the order, and of the choice of the tenth of the texts that is for the evaluation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes the file.
pub(crate) fn run(args: &DataArgs) -> anyhow::Result<()> {
    args.problem()?.write(&args.out)
}

impl DataArgs {
    fn problem(&self) -> anyhow::Result<TrainingProblem> {
        let Network { name, inputs, zoo, .. } = self.network;
        match (zoo.data, inputs) {
            (Some("mnist"), InputKind::Rows) => {
                let mut problem = self.images(ImageSet::Mnist)?;
                for (xs, _) in problem.train.iter_mut().chain(&mut problem.test) {
                    *xs = xs.flatten_from(1)?;
                }
                Ok(problem)
            }
            (Some("mnist"), _) => self.images(ImageSet::Mnist),
            (Some("cifar-10-batches-bin"), _) => self.images(ImageSet::Cifar10),
            (Some("rt-polarity"), InputKind::Padded(shape)) => self.classified(shape.len() > 1),
            (Some("rt-polarity"), _) => self.characters(),
            _ => bail!("{name} has drawn batches only"),
        }
    }

    fn images(&self, set: ImageSet) -> anyhow::Result<TrainingProblem> {
        let split = match &self.data_dir {
            Some(dir) => set.open(dir)?,
            None => set.synthetic(self.seed, 20_000, TEST_IMAGES)?,
        };
        let sizes = NetworkSizes { classes: split.train.classes(), ..self.network.drawn_sizes() };
        self.collect(&split.train, &split.test, TEST_IMAGES, sizes, pair)
    }

    /// Texts with their polarity, in sentences or as one sequence of words.
    fn classified(&self, in_sentences: bool) -> anyhow::Result<TrainingProblem> {
        let (train, test) = polarity(self.data_dir.as_deref())?.split(0.1, self.seed)?;
        let vocabulary = Vocabulary::words(train.texts(), LEAST, usize::MAX);
        let sizes = NetworkSizes { vocabulary: vocabulary.len(), classes: train.classes().len() };
        let (train, test) = if in_sentences {
            let lengths = train.sentences_at(WHOLE)?;
            (train.documents(&vocabulary, lengths)?, test.documents(&vocabulary, lengths)?)
        } else {
            let length = train.words_at(WHOLE)?;
            (train.padded(&vocabulary, length)?, test.padded(&vocabulary, length)?)
        };
        self.collect(&train, &test, usize::MAX, sizes, pair)
    }

    /// Characters, each with the one that follows.
    fn characters(&self) -> anyhow::Result<TrainingProblem> {
        let texts = polarity(self.data_dir.as_deref())?;
        let text = texts.texts().collect::<Vec<_>>().join("\n");
        let text: String = text.chars().take(CHARACTERS).collect();
        let vocabulary = Vocabulary::characters(&text);
        let tokens = vocabulary.encode(&text)?;
        let (train, test) = tokens.split_at(tokens.len() * 9 / 10);
        let sizes = NetworkSizes { vocabulary: vocabulary.len(), classes: LSTM.vocabulary };
        let train = TextDataset::new(train, TEXT, TEXT)?;
        let test = TextDataset::new(test, TEXT, TEXT)?;
        self.collect(&train, &test, usize::MAX, sizes, |batch| batch)
    }

    /// The batches of all steps, and up to `most_tests` examples for the evaluation.
    fn collect<D: Dataset>(
        &self,
        train: &D,
        test: &D,
        most_tests: usize,
        sizes: NetworkSizes,
        pair: impl Fn(D::Batch) -> (Tensor, Tensor),
    ) -> anyhow::Result<TrainingProblem> {
        let (batch_size, steps) = (self.batch_size.get(), self.steps.get());
        let sampler = DistributedSampler::new(SamplerConfig {
            len: train.len(),
            global_rank: 0,
            world_size: 1,
            batch_size,
            seed: self.seed,
            shuffle: true,
            remainder: Remainder::Drop,
        })?;
        let mut batches = ProblemBatches::new();
        for epoch in 0.. {
            for samples in sampler.epoch(epoch).batches().take(steps - batches.len()) {
                let pass = Pass::training(self.seed, epoch as u64);
                batches.push(pair(train.read(&samples, &pass)?));
            }
            if batches.len() == steps {
                break;
            }
        }
        let tests: Vec<u32> = (0..test.len().min(most_tests) as u32).collect();
        let read = |samples: &[u32]| Ok(pair(test.read(samples, &Pass::evaluation())?));
        let test: anyhow::Result<ProblemBatches> = tests.chunks(batch_size).map(read).collect();
        Ok(TrainingProblem { train: batches, test: test?, sizes })
    }
}

fn pair(Batch { xs, ys }: Batch) -> (Tensor, Tensor) {
    (xs, ys)
}

/// The sentences of film reviews, which are in Windows-1252.
fn polarity(dir: Option<&Path>) -> anyhow::Result<LabelledTexts> {
    let dir =
        dir.context("texts need --data-dir, a folder with rt-polarity.pos and rt-polarity.neg")?;
    let files = ["neg", "pos"].map(|class| (class, dir.join(format!("rt-polarity.{class}"))));
    let options = TextOptions { encoding: TextEncoding::Windows1252, ..TextOptions::default() };
    Ok(LabelledTexts::lines(files, &options)?)
}
