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
pub use candle_core as candle;

#[doc = include_str!("../docs/optimizers.md")]
pub mod optimizers_guide {}

#[doc = include_str!("../docs/training.md")]
pub mod training_guide {}

#[doc = include_str!("../docs/checkpoints.md")]
pub mod checkpoints_guide {}

#[doc = include_str!("../docs/porting.md")]
pub mod porting_guide {}

/// The usual imports of a training program: `use candelabrum::prelude::*`.
pub mod prelude {
    pub use candelabrum_datasets::{
        Augmentation, Batch, BatchOptions, Collated, CsvConfig, CsvTable, Dataset,
        DistributedSampler, FnDataset, FolderOptions, ImageDataset, ImageFolder, ImagePipeline,
        Loader, LoaderOptions, Mnist, Pass, RandomResizedCrop, RecordDataset, Remainder, Resize,
        SamplerConfig, Scaling, ShardOptions, Shards, Shuffle, TensorDataset, TextDataset,
        Vocabulary, shards_in,
    };
    pub use candelabrum_dist::{
        Communicator, DistOpt, DistOptConfig, OnOverflow, ReduceOp, StrategyConfig, World,
    };
    pub use candelabrum_kvstore::{
        KvStore, Server, SparseEmbedding, StoreConfig, StoreKind, StoreOpt,
    };
    pub use candelabrum_nn::layers::{
        AttentionPooling, AvgPool2d, BatchNorm2d, Conv2d, Dropout, Embedding, FeedForward, Flatten,
        Gelu, GeluTanh, GlobalAvgPool, Gru, LayerNorm, Linear, Lstm, MaxPool2d, MultiHeadAttention,
        ReLU, ReLU6, RmsNorm, Rnn, Sigmoid, Silu, SoftMaxCrossEntropy, Softmax, Tanh,
        TransformerBlock,
    };
    pub use candelabrum_nn::{
        Activation, BackwardAndUpdate, DistOption, FromModule, FromModuleT, Model, NameMap, Params,
        Scope,
    };
    pub use candelabrum_optim::{
        AdaGrad, Adam, AdamW, Clip, Lamb, Lars, OneCycle, Optimizer, ParamGroup, RmsProp, Schedule,
        Sgd,
    };
    pub use candelabrum_train::checkpoint::{CheckpointConfig, Checkpoints, Resume};
    pub use candelabrum_train::hooks::{
        BestModel, EarlyStopping, Goal, Hook, LearningRateFinder, Monitor, ReduceOnPlateau,
    };
    pub use candelabrum_train::{
        Accuracy, ConfusionMatrix, F1, Fit, FitConfig, LogFiles, LossOnly, Metrics,
        RegressionErrors, Score, Task, TopAccuracy, Trainer,
    };
    pub use candle_core::{DType, Device, Module, Tensor};
}
