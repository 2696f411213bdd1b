#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use candelabrum_datasets as datasets;
pub use candelabrum_dist as dist;
pub use candelabrum_kvstore as kvstore;
pub use candelabrum_memory as memory;
pub use candelabrum_models as models;
pub use candelabrum_nn as nn;
pub use candelabrum_optim as optim;
pub use candelabrum_train as train;
#[cfg(feature = "transformers")]
pub use candelabrum_transformers as transformers;
pub use candle_core as candle;

#[doc = include_str!("../docs/first-steps.md")]
pub mod first_steps_guide {}

#[doc = include_str!("../docs/from-pytorch.md")]
pub mod from_pytorch_guide {}

#[doc = include_str!("../docs/models.md")]
pub mod models_guide {}

#[cfg(feature = "transformers")]
#[doc = include_str!("../docs/pretrained.md")]
pub mod pretrained_guide {}

#[doc = include_str!("../docs/optimizers.md")]
pub mod optimizers_guide {}

#[doc = include_str!("../docs/training.md")]
pub mod training_guide {}

#[doc = include_str!("../docs/sampling.md")]
pub mod sampling_guide {}

#[doc = include_str!("../docs/hooks.md")]
pub mod hooks_guide {}

#[doc = include_str!("../docs/memory.md")]
pub mod memory_guide {}

#[doc = include_str!("../docs/losses.md")]
pub mod losses_guide {}

#[doc = include_str!("../docs/weights.md")]
pub mod weights_guide {}

#[doc = include_str!("../docs/checkpoints.md")]
pub mod checkpoints_guide {}

#[doc = include_str!("../docs/porting.md")]
pub mod porting_guide {}

/// The usual imports of a training program: `use candelabrum::prelude::*`.
pub mod prelude {
    pub use candelabrum_datasets::{
        Augmentation, Batch, BatchOptions, Collated, CsvConfig, CsvTable, Dataset,
        DistributedSampler, FnDataset, FolderOptions, ImageDataset, ImageFolder, ImagePipeline,
        ImageRecord, ImageSet, ImageSplit, LabelledTexts, Loader, LoaderOptions, Mnist,
        PaddedTexts, Pass, RandomResizedCrop, RecordDataset, Remainder, Resize, SamplerConfig,
        Scaling, ShardOptions, Shards, Shuffle, Subset, TensorDataset, TextDataset, TextEncoding,
        TextOptions, Vocabulary, shards_in,
    };
    pub use candelabrum_dist::launch::limit_threads;
    pub use candelabrum_dist::{
        Communicator, DistOpt, DistOptConfig, OnOverflow, ReduceOp, Shard, StrategyConfig, World,
        WorldConfig,
    };
    pub use candelabrum_kvstore::{KvStore, Server, SparseEmbedding, StoreConfig, StoreKind};
    pub use candelabrum_memory::heap::CountedHeap;
    pub use candelabrum_nn::layers::{
        AdaptiveAvgPool2d, AttentionPooling, AvgPool2d, BatchNorm1d, BatchNorm2d, Conv1d, Conv2d,
        ConvTranspose2d, Dropout, Embedding, FeedForward, Flatten, Gelu, GeluTanh, GlobalAvgPool,
        GroupNorm, Gru, InstanceNorm2d, LayerNorm, Linear, LocalResponseNorm, Lstm, MaxPool2d,
        MultiHeadAttention, ReLU, ReLU6, RmsNorm, Rnn, SeparableConv2d, Sigmoid, Silu,
        SoftMaxCrossEntropy, Softmax, Tanh, TransformerBlock,
    };
    pub use candelabrum_nn::ops::Pool2dConfig;
    pub use candelabrum_nn::{
        Activation, BackwardAndUpdate, DistOption, FromModule, FromModuleT, Model, NameMap, Params,
        Scope,
    };
    pub use candelabrum_optim::{
        AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Clip, Lamb, Lars, Muon, MuonScale, OneCycle,
        Optimizer, ParamGroup, RmsProp, Schedule, Sgd,
    };
    pub use candelabrum_train::checkpoint::{
        CheckpointConfig, Checkpoints, Resume, export_best, export_best_average, load_best,
        load_best_average,
    };
    pub use candelabrum_train::hooks::{
        BestModel, Direction, EarlyStopping, ExportBest, Hook, LearningRateFinder, Monitor,
        ReduceOnPlateau, WeightAverage,
    };
    pub use candelabrum_train::{
        Accuracy, ConfusionMatrix, EvaluationSets, F1, Fit, FitConfig, LogFiles, LossOnly, Metrics,
        Perplexity, RegressionErrors, Sampling, Score, Task, TopAccuracy, Trainer,
    };
    pub use candle_core::{DType, Device, Module, Tensor};
}
