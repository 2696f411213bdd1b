//! The vision transformer (Dosovitskiy et al., arXiv:2010.11929) as Hugging Face has it.

use candelabrum_nn::layers::{Blocks, Conv2d, Dropout, LayerNorm, Linear};
use candelabrum_nn::{Param, Scope, ops};
use candle_core::{Module, Result as CandleResult, Tensor, bail};
use once_cell::sync::OnceCell;

use super::common::new_layer_init;
use super::encoder_layer::{EncoderLayer, LayerNames, LayerSizes, NormOrder};
use super::head::first_token;
use crate::config::Config;
use crate::error::Result;

const NAMES: LayerNames = LayerNames {
    query: "attention.attention.query",
    key: "attention.attention.key",
    value: "attention.attention.value",
    out: "attention.output.dense",
    attention_norm: "layernorm_before",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "layernorm_after",
};

/// An encoder of images: `(N, C, H, W) -> (N, 1 + patches, width)`, the state of the class token first.
#[derive(Debug)]
pub(crate) struct Vit {
    embeddings: Scope,
    image: usize,
    patch: usize,
    width: usize,
    channels: usize,
    projection: Conv2d,
    tables: OnceCell<PretrainedVitTables>,
    dropout: Option<Dropout>,
    layers: Blocks<EncoderLayer>,
    layernorm: LayerNorm,
}

#[derive(Debug)]
struct PretrainedVitTables {
    /// (1, 1, width)
    class_token: Param,
    /// (1, 1 + patches, width)
    positions: Param,
}

impl Vit {
    /// The network of this `config.json`, with names below `vit`, or, for an encoder `alone`, as it is saved without a
    /// head.
    ///
    /// # Errors
    /// A config that lacks a size, or has a variant that is not supported.
    pub(crate) fn new(scope: &Scope, config: &Config, alone: bool) -> Result<Self> {
        let width = config.needed("hidden_size")?;
        let sizes = LayerSizes {
            width,
            hidden: config.needed("intermediate_size")?,
            heads: config.heads("num_attention_heads", width)?,
            eps: config.real("layer_norm_eps")?.unwrap_or(1e-12),
            activation: config.activation("hidden_act", "gelu")?,
            dropout: config.dropout("hidden_dropout_prob")?,
            qkv_bias: config.flag("qkv_bias")?.unwrap_or(true),
        };
        let (image, patch) = (config.needed("image_size")?, config.needed("patch_size")?);
        if !image.is_multiple_of(patch) {
            return Err(
                config.fault(format!("has images of {image} pixels and patches of {patch}"))
            );
        }
        let channels = config.size("num_channels")?.unwrap_or(3);
        if !(1..=1024).contains(&channels) {
            return Err(config.fault(format!("has num_channels = {channels}, which no image has")));
        }
        let scope = if alone { scope.clone() } else { scope.pp("vit") };
        let (embeddings, encoder) = (scope.pp("embeddings"), scope.pp("encoder"));
        let layer = |number: usize| {
            EncoderLayer::new(&encoder.pp("layer").pp(number), NAMES, sizes, NormOrder::Pre)
        };
        Ok(Self {
            image,
            patch,
            width,
            channels,
            projection: Conv2d::new(&embeddings.pp("patch_embeddings.projection"), width, patch)
                .stride(patch),
            tables: OnceCell::new(),
            dropout: (sizes.dropout > 0.0)
                .then(|| Dropout::new(&embeddings.pp("dropout"), sizes.dropout)),
            layers: Blocks::new(&scope, (0..config.layers("num_hidden_layers")?).map(layer)),
            layernorm: LayerNorm::new(&scope.pp("layernorm")).eps(sizes.eps),
            embeddings,
        })
    }

    /// The shape of one image, (C, H, W).
    pub(crate) fn image(&self) -> [usize; 3] {
        [self.channels, self.image, self.image]
    }

    /// The features of the class token and of all patches, `(N, C, H, W) -> (N, 1 + patches, width)`.
    ///
    /// # Errors
    /// Images of another size.
    pub(crate) fn states(&self, images: &Tensor) -> CandleResult<Tensor> {
        let (batch, _, height, width) = images.dims4()?;
        if [height, width] != [self.image; 2] {
            bail!("images of {height} x {width} pixels, the model takes {0} x {0}", self.image)
        }
        let tables = self.tables()?;
        // (N, width, H / patch, W / patch) -> (N, patches, width)
        let patches = self.projection.forward(images)?.flatten_from(2)?;
        let patches = ops::transpose(&patches, 1, 2)?;
        // The class token of every image: a sum with zeros repeats it, with a gradient.
        let zeros = Tensor::zeros((batch, 1, self.width), patches.dtype(), patches.device())?;
        let class = ops::add(&zeros, tables.class_token.tensor(), None)?;
        let tokens = ops::cat(&[&class, &patches], 1)?;
        let mut xs = ops::add(&tokens, tables.positions.tensor(), None)?;
        if let Some(dropout) = &self.dropout {
            xs = dropout.forward(&xs)?;
        }
        let xs = self.layers.forward_by(&xs, |layer, xs| layer.forward(xs, None))?;
        self.layernorm.forward(&xs)
    }

    /// The head of a classifier.
    pub(crate) fn classifier(&self, scope: &Scope, classes: usize) -> VitHead {
        // Adapters leave a head out, as those of Python's peft: it is trained as a whole.
        VitHead(Linear::new(&scope.pp("classifier"), classes).init(new_layer_init()).output())
    }

    /// The tables, which tell whether images of the config's size are those of the files.
    pub(crate) fn check_positions(&self) -> CandleResult<()> {
        self.tables().map(drop)
    }

    fn tables(&self) -> CandleResult<&PretrainedVitTables> {
        self.tables.get_or_try_init(|| self.create())
    }

    fn create(&self) -> CandleResult<PretrainedVitTables> {
        let patches = (self.image / self.patch) * (self.image / self.patch);
        let table = |name: &str, rows: usize| {
            self.embeddings.param(name, (1, rows, self.width), new_layer_init())
        };
        let class_token = table("cls_token", 1)?;
        Ok(PretrainedVitTables {
            class_token,
            positions: table("position_embeddings", 1 + patches)?,
        })
    }
}

/// The head of a classifier: of the class token's state.
#[derive(Debug)]
pub(crate) struct VitHead(Linear);

impl VitHead {
    /// `(N, 1 + patches, width) -> (N, classes)`.
    pub(crate) fn forward(&self, states: &Tensor) -> CandleResult<Tensor> {
        self.0.forward(&first_token(states)?)
    }
}

/// What files of ViTs have besides: a pooler.
pub(crate) fn is_known(name: &str) -> bool {
    name.contains("pooler.dense.")
}
