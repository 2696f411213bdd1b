//! How the images of a vision model are prepared: `preprocessor_config.json`.

use candelabrum_datasets::{ImagePipeline, Resize, Scaling};

use crate::companions::{Companions, IMAGES};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::neutral;
use crate::pretrained::Pretrained;

impl Pretrained {
    /// What becomes of an image file before it reaches the model, as the folder's `preprocessor_config.json` says: size,
    /// mean and standard deviation. A program that prepares images in another way than the model's training gets other
    /// results, without an error.
    ///
    /// # Errors
    /// No such file, a setting that is not supported, or a size that is not that of the model.
    pub fn image_pipeline(&self) -> Result<ImagePipeline> {
        let mut companions = Companions::new(self.path(), self.accepted());
        companions.add(IMAGES)?;
        let Some(json) = companions.json(IMAGES)? else {
            let what = "has no preprocessor_config.json: build an `ImagePipeline` with the size, mean and standard deviation \
                of the model's training";
            return Err(Error::file(self.path(), what));
        };
        let image = self.config().needed("image_size")?;
        let pipeline = match self.config().size("num_channels")?.unwrap_or(3) {
            1 => ImagePipeline::gray([image; 2])?,
            3 => ImagePipeline::rgb([image; 2])?,
            other => {
                let what = format!("has num_channels = {other}: images have 1 or 3");
                return Err(self.config().fault(what));
            }
        };
        let pipeline = pipeline.resized(resize(&json, image)?)?.scaled(scaling(&json)?)?;
        json.finish(&[neutral::IMAGE_PROCESSOR])?;
        Ok(pipeline)
    }
}

/// The whole image in the model's size, or the center of an image of which the shorter side has so many pixels.
fn resize(json: &Config, image: usize) -> Result<Resize> {
    let crops = json.flag("do_center_crop")?.unwrap_or(false);
    let crop =
        json.get("crop_size").filter(|_| crops).map(|_| square(json, "crop_size")).transpose()?;
    let size = match json.object("size") {
        Ok(Some(size)) if size.get("shortest_edge").is_some() => {
            let shorter = size.needed("shortest_edge")?;
            size.finish(&[])?;
            return match crop {
                Some(Some(crop)) if crop == image => Ok(Resize::Shorter(shorter)),
                _ => Err(json.fault(format!(
                    "has size.shortest_edge without a center crop of {image} pixels, which is the model's image_size"
                ))),
            };
        }
        _ => square(json, "size")?,
    };
    let (size, crop) = (size.unwrap_or(224), crop.flatten());
    if size != image || crop.is_some_and(|crop| crop != image) {
        let what = format!("has images of {size} pixels, and config.json has image_size = {image}");
        return Err(json.fault(what));
    }
    Ok(Resize::Stretch)
}

/// A number of pixels, or `height` and `width`, which are equal.
fn square(json: &Config, key: &str) -> Result<Option<usize>> {
    if json.get(key).is_none_or(serde_json::Value::is_number) {
        return json.size(key);
    }
    let size = json.needed_object(key)?;
    let (height, width) = (size.needed("height")?, size.needed("width")?);
    size.finish(&[])?;
    if height != width {
        return Err(json.fault(format!("has {key} = {height} x {width}, which is no square")));
    }
    Ok(Some(height))
}

/// `(x / 255 - mean) / std`, or `x / 255`.
fn scaling(json: &Config) -> Result<Scaling> {
    let factor = json.real("rescale_factor")?.unwrap_or(1.0 / 255.0);
    if (factor * 255.0 - 1.0).abs() > 1e-6 {
        return Err(json.fault(format!("has rescale_factor = {factor}: 1 / 255 is supported")));
    }
    let normalizes = json.flag("do_normalize")?.unwrap_or(true);
    let numbers = |key: &str| {
        let Some(value) = json.get(key) else { return Ok(vec![0.5; 3]) };
        let numbers = value.as_array().map(|list| list.iter().map(serde_json::Value::as_f64));
        let numbers = numbers.and_then(|numbers| numbers.map(|x| x.map(|x| x as f32)).collect());
        numbers
            .ok_or_else(|| json.fault(format!("has {key} = {value}, which is no list of numbers")))
    };
    let (mean, std): (Vec<f32>, Vec<f32>) = (numbers("image_mean")?, numbers("image_std")?);
    Ok(match normalizes {
        true => Scaling::Standardized { mean: mean.into(), std: std.into() },
        false => Scaling::Unit,
    })
}
