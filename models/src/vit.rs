//! A vision transformer (Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021, arXiv:2010.11929), with
//! torchvision's structure and initial values. An image is a sequence of patches, with one more token whose state
//! behind the last block is classified.

use candelabrum_nn::layers::{Blocks, Conv2d, Dropout, LayerNorm, Linear, TransformerBlock};
use candelabrum_nn::{Init, Model, NameMap, Param, Scope, ops};
use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

/// The constant of all normalisations.
const EPS: f64 = 1e-6;

/// The sizes of a [`Vit`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VitConfig {
    /// The height and width of a patch, which divide those of the images.
    pub patch: usize,
    /// The number of features of a token.
    pub width: usize,
    /// The number of transformer blocks.
    pub layers: usize,
    /// The number of heads of each attention, which divides `width`.
    pub heads: usize,
    /// The number of hidden units of each block.
    pub hidden: usize,
    /// The probability of dropout of the tokens and in each branch of a block.
    pub dropout: f32,
}

impl VitConfig {
    /// torchvision's `vit_b_16`: 86,567,656 parameters for 1000 classes of images of 224×224.
    #[must_use]
    pub fn base_16() -> Self {
        Self { patch: 16, width: 768, layers: 12, heads: 12, hidden: 3072, dropout: 0.0 }
    }

    /// 2.7 million parameters for ten classes of images of 32×32: 6 blocks of 192 features and 3 heads, the width
    /// of DeiT-Ti (Touvron et al., arXiv:2012.12877), patches of 4×4.
    #[must_use]
    pub fn tiny_4() -> Self {
        Self { patch: 4, width: 192, layers: 6, heads: 3, hidden: 768, dropout: 0.0 }
    }
}

/// `(N, C, H, W) -> (N, classes)`. The first images determine the number of patches.
///
/// Parameters outside the blocks have torchvision's names. Those of a block have the names of [`TransformerBlock`]:
/// [`torchvision_names`](Self::torchvision_names) translates a file of torchvision's weights.
#[derive(Debug)]
pub struct Vit {
    scope: Scope,
    config: VitConfig,
    conv_proj: Conv2d,
    tables: OnceCell<VitTables>,
    dropout: Option<Dropout>,
    blocks: Blocks<TransformerBlock>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Debug)]
struct VitTables {
    class_token: Param,
    /// (1, tokens, width)
    positions: Param,
}

impl Vit {
    /// The network with the sizes of `config` and `classes` outputs.
    pub fn new(scope: &Scope, classes: usize, config: VitConfig) -> Self {
        let encoder = scope.pp("encoder");
        let block = |number: usize| {
            let scope = encoder.pp("layers").pp(format!("encoder_layer_{number}"));
            TransformerBlock::new(&scope, config.heads)
                .hidden(config.hidden)
                .eps(EPS)
                .dropout(config.dropout)
        };
        let drops = config.dropout != 0.0;
        Self {
            scope: scope.clone(),
            config,
            conv_proj: Conv2d::new(&scope.pp("conv_proj"), config.width, config.patch)
                .stride(config.patch),
            tables: OnceCell::new(),
            dropout: drops.then(|| Dropout::new(&encoder.pp("dropout"), config.dropout)),
            blocks: Blocks::new(scope, (0..config.layers).map(block)),
            norm: LayerNorm::new(&encoder.pp("ln")).eps(EPS),
            head: Linear::new(&scope.pp("heads.head"), classes).init(Init::ZEROS),
        }
    }

    /// The names of this network's parameters for those of torchvision's `VisionTransformer`, of its newer and of
    /// its older files: for [`Params::load_weights`](candelabrum_nn::Params::load_weights).
    #[must_use]
    pub fn torchvision_names() -> NameMap {
        NameMap::new()
            .rename(".ln_1.", ".norm1.")
            .rename(".ln_2.", ".norm2.")
            .rename(".self_attention.in_proj_", ".attention.qkv.")
            .rename(".self_attention.out_proj.", ".attention.out.")
            .rename(".mlp.0.", ".up.")
            .rename(".mlp.3.", ".down.")
            .rename(".mlp.linear_1.", ".up.")
            .rename(".mlp.linear_2.", ".down.")
    }

    /// The patches of images as tokens, `(N, C, H, W) -> (N, patches, width)`.
    fn patches(&self, xs: &Tensor) -> Result<Tensor> {
        let patch = self.config.patch;
        if let &[_, _, height, width] = xs.dims() {
            let is_divided = |size: usize| patch > 0 && size > 0 && size.is_multiple_of(patch);
            if !is_divided(height) || !is_divided(width) {
                bail!("images of {height}×{width} do not divide into patches of {patch}×{patch}")
            }
        }
        let ys = self.conv_proj.forward(xs)?; // (N, width, H / patch, W / patch)
        ops::transpose(&ys.flatten_from(2)?, 1, 2)
    }

    /// Both tables. The first call makes them for so many patches.
    fn tables(&self, patches: usize) -> Result<&VitTables> {
        let tokens = patches + 1;
        let width = self.config.width;
        let tables = self.tables.get_or_try_init(|| -> Result<VitTables> {
            let class_token = self.scope.param("class_token", (1, 1, width), Init::ZEROS)?;
            let init = Init::Normal { std: 0.02 };
            let scope = self.scope.pp("encoder");
            let positions = scope.param("pos_embedding", (1, tokens, width), init)?;
            Ok(VitTables { class_token, positions })
        })?;
        let expected = tables.positions.var().dim(1)?;
        if expected != tokens {
            bail!(
                "the network has positions of {} patches, the images have {patches}",
                expected - 1
            )
        }
        Ok(tables)
    }

    /// The tokens of images with their positions, `(N, C, H, W) -> (N, 1 + patches, width)`.
    fn tokens(&self, xs: &Tensor) -> Result<Tensor> {
        let patches = self.patches(xs)?;
        let (batch, count, width) = patches.dims3()?;
        let VitTables { class_token, positions } = self.tables(count)?;
        let nothing = Tensor::zeros((batch, 1, width), patches.dtype(), patches.device())?;
        let class_tokens = ops::add(&nothing, class_token.tensor(), None)?;
        let tokens = ops::cat(&[&class_tokens, &patches], 1)?;
        ops::add(&tokens, positions.tensor(), None)
    }
}

impl Model for Vit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.tokens(xs)?;
        if let Some(dropout) = &self.dropout {
            ys = dropout.forward(&ys)?;
        }
        let ys = self.blocks.forward(&ys)?;
        // Only the class token goes on. The norm is that of each token alone.
        let states = ops::narrow(&ys, 1, 0, 1)?.squeeze(1)?; // (N, width)
        self.head.forward(&self.norm.forward(&states)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::{DType, Device};

    use super::*;

    /// The number of parameters for images of 224×224.
    fn count(config: VitConfig) -> Result<usize> {
        let params = Params::new(0);
        let summary = Vit::new(&params.root(), 1000, config).compile(&params, (1, 3, 224, 224))?;
        Ok(summary.parameter_count())
    }

    #[test]
    fn there_are_as_many_parameters_as_in_torchvision() -> Result<()> {
        let base = VitConfig::base_16();
        let none = count(VitConfig { layers: 0, ..base })?;
        let of_a_block = count(VitConfig { layers: 1, ..base })? - none;
        // sum(p.numel() for p in torchvision.models.vit_b_16().parameters())
        assert_eq!(none + base.layers * of_a_block, 86_567_656);

        let params = Params::new(0);
        let model = Vit::new(&params.root(), 10, VitConfig::tiny_4());
        let summary = model.compile(&params, (1, 3, 32, 32))?;
        assert_eq!(summary.parameter_count(), 2_693_578);
        Ok(())
    }

    #[test]
    fn images_that_do_not_fit_are_refused() -> Result<()> {
        let params = Params::new(0);
        let config = VitConfig { layers: 1, width: 6, heads: 2, ..VitConfig::tiny_4() };
        let model = Vit::new(&params.root(), 3, config);
        model.compile(&params, (1, 3, 8, 12))?;
        let error = |dims: (usize, usize, usize, usize)| -> Result<String> {
            let xs = Tensor::zeros(dims, DType::F32, &Device::Cpu)?;
            Ok(model.forward(&xs).expect_err("it does not fit").to_string())
        };
        let message = error((1, 3, 10, 12))?;
        assert!(message.contains("images of 10×12 do not divide into patches of 4×4"), "{message}");
        let message = error((1, 3, 8, 8))?;
        assert!(message.contains("positions of 6 patches, the images have 4"), "{message}");
        Ok(())
    }
}
