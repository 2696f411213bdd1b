//! The filters of the example.

use candelabrum::candle::{Device, Result as CandleResult, Tensor};
use candelabrum::train::{Error, Result};
use clap::ValueEnum;

/// The largest radius. convolve.cu has room for it.
const MOST_RADIUS: usize = 8;

/// The radius of a filter that can have any.
const RADIUS: usize = 3;

/// What a filter does with a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Blurs by the bell curve
    #[default]
    Gaussian,
    /// Adds to each pixel its difference from its four neighbours
    Sharpen,
    /// Shows edges: the length of the gradient
    Sobel,
    /// Blurs by the mean
    Box,
}

/// Square filters of one size: two for the gradient, otherwise one.
#[derive(Clone, Debug)]
pub(crate) struct Filters {
    /// The pixels on each side of the middle.
    pub(crate) radius: usize,
    /// The filters one after the other, row by row.
    pub(crate) weights: Vec<f32>,
}

impl Filters {
    /// # Errors
    /// A radius out of range.
    pub(crate) fn new(kind: Kind, radius: Option<usize>) -> Result<Self> {
        let (default, most) = match kind {
            Kind::Gaussian | Kind::Box => (RADIUS, MOST_RADIUS),
            Kind::Sharpen | Kind::Sobel => (1, 1),
        };
        let radius = radius.unwrap_or(default);
        if !(1..=most).contains(&radius) {
            let range = match most {
                1 => "1 for this filter".to_owned(),
                most => format!("from 1 to {most}"),
            };
            return Err(Error::Option { option: "--radius", value: radius.to_string(), range });
        }
        let weights = match kind {
            Kind::Gaussian => gaussian(radius),
            Kind::Box => {
                let pixels = (2 * radius + 1).pow(2);
                vec![1.0 / pixels as f32; pixels]
            }
            Kind::Sharpen => vec![0.0, -1.0, 0.0, -1.0, 5.0, -1.0, 0.0, -1.0, 0.0],
            Kind::Sobel => {
                let across = [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];
                let down = [-1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0];
                [across, down].concat()
            }
        };
        Ok(Self { radius, weights })
    }

    /// The number of filters.
    pub(crate) fn count(&self) -> usize {
        self.weights.len() / self.side().pow(2)
    }

    /// The pixels along a side.
    pub(crate) fn side(&self) -> usize {
        2 * self.radius + 1
    }

    /// As the weight of a convolution, (count, 1, side, side).
    pub(crate) fn tensor(&self, device: &Device) -> CandleResult<Tensor> {
        let shape = (self.count(), 1, self.side(), self.side());
        Tensor::from_slice(&self.weights, shape, device)
    }
}

/// The bell curve with a standard deviation of half the radius. The weights add up to 1.
fn gaussian(radius: usize) -> Vec<f32> {
    let deviation = radius as f64 / 2.0;
    let bell: Vec<f64> = (0..=2 * radius)
        .map(|i| (-0.5 * ((i as f64 - radius as f64) / deviation).powi(2)).exp())
        .collect();
    let sum: f64 = bell.iter().sum();
    let weights = bell.iter().flat_map(|y| bell.iter().map(move |x| x * y / sum.powi(2)));
    weights.map(|weight| weight as f32).collect()
}
