//! Xception (Chollet, *Xception: Deep Learning with Depthwise Separable Convolutions*, CVPR 2017,
//! arXiv:1610.02357, figure 5), with the structure and the names of its common ports to PyTorch (Cadene's, timm's):
//! no padding in the first two convolutions, no activation between the two halves of a separable convolution.
//!
//! SINGA's `Xception` comes from the same port and differs twice: its second convolution is padded, and the last
//! pooling takes the maximum of 10×10 pixels, all that are left of an image of 299×299, instead of their mean.
//! Convolutions start [`he_normal`](candelabrum_nn::Init::he_normal) over their outputs, depthwise ones over those of
//! their channel.

use candelabrum_nn::layers::{
    BatchNorm2d, Blocks, Conv2d, GlobalAvgPool, Linear, MaxPool2d, SeparableConv2d,
};
use candelabrum_nn::{Activation, Init, Model, Scope, ops};
use candle_core::{Module, Result, Tensor};

use crate::conv::conv;

/// `(N, C, H, W) -> (N, classes)`, with `H` and `W` from 71 on, 299 in the paper. 22,855,952 parameters for 1000
/// classes of colour images.
#[derive(Debug)]
pub struct Xception {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    blocks: Blocks<XceptionBlock>,
    conv3: SeparableConv2d,
    bn3: BatchNorm2d,
    conv4: SeparableConv2d,
    bn4: BatchNorm2d,
    pool: LastPool,
    fc: Linear,
}

#[derive(Debug)]
enum LastPool {
    Average(GlobalAvgPool),
    Maximum(MaxPool2d),
}

/// Separable convolutions whose result is added to their input.
#[derive(Debug)]
struct XceptionBlock {
    /// Whether an activation comes before the first convolution.
    is_rectified: bool,
    first: SeparableConv2d,
    /// Each convolution with the normalisation of its input.
    others: Vec<(BatchNorm2d, SeparableConv2d)>,
    /// The normalisation of the last convolution's result.
    last: BatchNorm2d,
    /// A block that halves the size does so by a pooling, and its input by a 1×1 convolution.
    smaller: Option<(MaxPool2d, Conv2d, BatchNorm2d)>,
}

/// What is not the same for all blocks: whether an activation comes first, the channels of each convolution's
/// result, and whether the block halves the size.
type XceptionPlan = (bool, &'static [usize], bool);

/// The blocks of the paper's figure 5, the middle one of them eight times.
const ENTRY: [XceptionPlan; 3] =
    [(false, &[128, 128], true), (true, &[256, 256], true), (true, &[728, 728], true)];
const MIDDLE: XceptionPlan = (true, &[728, 728, 728], false);
const EXIT: XceptionPlan = (true, &[728, 1024], true);

impl Xception {
    /// The network with `classes` outputs.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        Self::with(scope, classes, 0, LastPool::Average(GlobalAvgPool))
    }

    /// SINGA's variant, for images of 299×299.
    pub fn singa(scope: &Scope, classes: usize) -> Self {
        let pool = MaxPool2d::new(10).stride(1).named(&scope.pp("globalpooling"));
        Self::with(scope, classes, 1, LastPool::Maximum(pool))
    }

    fn with(scope: &Scope, classes: usize, padding: usize, pool: LastPool) -> Self {
        let plans = ENTRY.into_iter().chain([MIDDLE; 8]).chain([EXIT]);
        let block = |(number, plan)| XceptionBlock::new(&scope.pp(format!("block{number}")), plan);
        Self {
            conv1: conv(&scope.pp("conv1"), 32, 3).stride(2).padding(0),
            bn1: rectified(&scope.pp("bn1")),
            conv2: conv(&scope.pp("conv2"), 64, 3).padding(padding),
            bn2: rectified(&scope.pp("bn2")),
            blocks: Blocks::new(scope, (1..).zip(plans).map(block)),
            conv3: separable(&scope.pp("conv3"), 1536),
            bn3: rectified(&scope.pp("bn3")),
            conv4: separable(&scope.pp("conv4"), 2048),
            bn4: rectified(&scope.pp("bn4")),
            pool,
            fc: Linear::new(&scope.pp("fc"), classes),
        }
    }
}

fn rectified(scope: &Scope) -> BatchNorm2d {
    BatchNorm2d::new(scope).activation(Activation::Relu)
}

/// A convolution of 3×3 that keeps the size.
fn separable(scope: &Scope, channels: usize) -> SeparableConv2d {
    let inits = [Init::he_normal(9), Init::he_normal(channels)];
    SeparableConv2d::new(scope, channels, 3).padding(1).init(inits[0], inits[1])
}

impl Model for Xception {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.bn1.forward_conv(&self.conv1.forward(xs)?, &self.conv2)?;
        let ys = self.bn2.forward(&ys)?;
        let ys = self.blocks.forward(&ys)?;
        let ys = self.conv4.forward_normalised(&self.conv3.forward(&ys)?, &self.bn3)?;
        let ys = self.bn4.forward(&ys)?; // (N, 2048, 10, 10) of 299×299
        let ys = match &self.pool {
            LastPool::Average(pool) => pool.forward(&ys)?,
            LastPool::Maximum(pool) => pool.forward(&ys)?.flatten_from(1)?,
        };
        self.fc.forward(&ys)
    }
}

impl XceptionBlock {
    fn new(scope: &Scope, (is_rectified, channels, is_smaller): XceptionPlan) -> Self {
        let layers = scope.pp("rep");
        let outputs = channels[channels.len() - 1];
        // The port counts activations, too: one before each convolution, perhaps not before the first.
        let number = |index: usize| 3 * index + usize::from(is_rectified);
        let conv = |index: usize| separable(&layers.pp(number(index)), channels[index]);
        let norm = |index: usize| layers.pp(number(index) + 1);
        let others =
            (1..channels.len()).map(|index| (rectified(&norm(index - 1)), conv(index))).collect();
        let smaller = is_smaller.then(|| {
            let pool = layers.pp(number(channels.len()) - 1);
            (
                MaxPool2d::new(3).stride(2).padding(1).named(&pool),
                crate::conv::conv(&scope.pp("skip"), outputs, 1).stride(2),
                BatchNorm2d::new(&scope.pp("skipbn")),
            )
        });
        let last = BatchNorm2d::new(&norm(channels.len() - 1));
        Self { is_rectified, first: conv(0), others, last, smaller }
    }
}

impl Module for XceptionBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let first = if self.is_rectified {
            self.first.forward(&ops::relu(xs)?)?
        } else {
            self.first.forward(xs)?
        };
        let ys = self
            .others
            .iter()
            .try_fold(first, |ys, (norm, conv)| conv.forward_normalised(&ys, norm))?;
        match &self.smaller {
            None => self.last.forward_add(&ys, xs),
            Some((pool, conv, norm)) => {
                let ys = pool.forward(&self.last.forward(&ys)?)?;
                norm.forward_add(&conv.forward(xs)?, &ys)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn there_are_as_many_parameters_as_in_the_port() -> Result<()> {
        let params = Params::new(0);
        let summary = Xception::new(&params.root(), 1000).compile(&params, (1, 3, 71, 75))?;
        assert_eq!(summary.parameter_count(), 22_855_952);
        let last = summary.layers().iter().rfind(|layer| layer.output.len() == 4);
        assert_eq!(last.map(|layer| &layer.output[..]), Some(&[1, 2048, 3, 3][..]));
        Ok(())
    }

    #[test]
    fn parameters_have_the_ports_names() -> Result<()> {
        let params = Params::new(0);
        Xception::new(&params.root(), 10).compile(&params, (1, 3, 71, 71))?;
        for (name, shape) in [
            ("conv1.weight", &[32, 3, 3, 3][..]),
            ("block1.rep.0.conv1.weight", &[64, 1, 3, 3]),
            ("block1.rep.3.pointwise.weight", &[128, 128, 1, 1]),
            ("block1.rep.4.bias", &[128]),
            ("block1.skip.weight", &[128, 64, 1, 1]),
            ("block2.rep.1.conv1.weight", &[128, 1, 3, 3]),
            ("block4.rep.7.pointwise.weight", &[728, 728, 1, 1]),
            ("block11.rep.8.weight", &[728]),
            ("block12.rep.1.pointwise.weight", &[728, 728, 1, 1]),
            ("block12.rep.4.pointwise.weight", &[1024, 728, 1, 1]),
            ("block12.skipbn.weight", &[1024]),
            ("conv4.conv1.weight", &[1536, 1, 3, 3]),
            ("fc.weight", &[10, 2048]),
        ] {
            assert_eq!(params.get(name).expect(name).var().dims(), shape, "{name}");
        }
        Ok(())
    }

    #[test]
    fn singas_variant_takes_the_maximum_of_all_pixels() -> Result<()> {
        let params = Params::new(0);
        let model = Xception::singa(&params.root(), 10);
        let summary = model.compile(&params, (1, 3, 299, 299))?;
        let output = |name: &str| {
            let layer = summary.layers().iter().find(|layer| layer.name == name);
            layer.expect(name).output.clone()
        };
        assert_eq!(output("conv2"), [1, 64, 149, 149]);
        assert_eq!(output("conv4.pointwise"), [1, 2048, 10, 10]);
        assert_eq!(output("globalpooling"), [1, 2048, 1, 1]);
        Ok(())
    }
}
