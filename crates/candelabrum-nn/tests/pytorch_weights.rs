//! Files of weights that PyTorch has written, by `scripts/golden`.

use candelabrum_nn::layers::{BatchNorm2d, Conv2d, Embedding, Linear, Lstm, TransformerBlock};
use candelabrum_nn::{Activation, Model, NameMap, Params, Scope};
use candelabrum_testkit::{assert_close, golden, integers, uniform};
use candle_core::{DType, Module, Result, Tensor};

/// `Images` of scripts/golden/weights.py, with names of our own.
struct Images {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    shortcut: (Conv2d, BatchNorm2d),
    fc: Linear,
}

impl Images {
    fn new(root: &Scope) -> Self {
        Self {
            conv1: Conv2d::new(&root.pp("conv1"), 4, 3).padding(1).no_bias(),
            bn1: BatchNorm2d::new(&root.pp("bn1")).activation(Activation::Relu),
            conv2: Conv2d::new(&root.pp("conv2"), 6, 3).stride(2).padding(1),
            bn2: BatchNorm2d::new(&root.pp("bn2")),
            shortcut: (
                Conv2d::new(&root.pp("shortcut.conv"), 6, 1).stride(2).no_bias(),
                BatchNorm2d::new(&root.pp("shortcut.norm")),
            ),
            fc: Linear::new(&root.pp("fc"), 5),
        }
    }
}

impl Model for Images {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.bn1.forward(&self.conv1.forward(xs)?)?;
        let ys = self.bn2.forward(&self.conv2.forward(&xs)?)?;
        let shortcut = self.shortcut.1.forward(&self.shortcut.0.forward(&xs)?)?;
        self.fc.forward(&(ys + shortcut)?.relu()?.mean((2, 3))?)
    }
}

/// `Texts` of scripts/golden/weights.py, with names of our own.
struct Texts {
    embedding: Embedding,
    block: TransformerBlock,
    lstm: Lstm,
    head: Linear,
}

impl Model for Texts {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let xs = self.block.forward(&self.embedding.forward(tokens)?)?;
        self.head.forward(&self.lstm.forward(&xs)?)
    }
}

fn golden_file(name: &str) -> String {
    format!("{}/tests/golden/weights_{name}.safetensors", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_model_with_pytorchs_weights_computes_what_pytorch_computes() -> Result<()> {
    let results = golden(golden_file("results"));
    let params = Params::new(1);
    let images = Images::new(&params.root());
    images.compile(&params, (1, 3, 8, 8))?;
    let names = NameMap::new()
        .strip_prefix("module.")
        .rename("downsample.0", "shortcut.conv")
        .rename("downsample.1", "shortcut.norm")
        .rename("classifier.1", "fc");
    let report = params.load_weights(golden_file("images"), &names)?.complete()?;
    assert_eq!(report.to_string(), "18 parameters loaded");
    params.eval();
    let xs = uniform((2, 3, 8, 8), 9810, -1.0, 1.0, DType::F32)?;
    assert_close(&images.forward(&xs)?, &results["images"], 1e-5, 1e-6);

    let params = Params::new(1);
    let root = params.root();
    let texts = Texts {
        embedding: Embedding::new(&root.pp("embedding"), 11, 8),
        block: TransformerBlock::new(&root.pp("block"), 2).hidden(12),
        lstm: Lstm::new(&root.pp("lstm"), 7),
        head: Linear::new(&root.pp("head"), 11),
    };
    let tokens = integers((2, 5), 9811, 11)?;
    texts.compile_with(&params, &tokens)?;
    let names = NameMap::new()
        .rename("wte", "embedding")
        .rename("self_attn.in_proj_", "attention.qkv.")
        .rename("self_attn.out_proj", "attention.out")
        .rename("linear1", "up")
        .rename("linear2", "down")
        .rename("_l0", "")
        .transpose("head.weight");
    let report = params.load_weights(golden_file("texts"), &names)?.complete()?;
    assert_eq!(report.to_string(), "19 parameters loaded");
    params.eval();
    assert_close(&texts.forward(&tokens)?, &results["texts"], 1e-5, 1e-6);
    Ok(())
}
