//! Pictures: PNG files of 8 bits, and planes of numbers from 0 to 1.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use candelabrum::candle::{Device, Result as CandleResult, Tensor};
use png::{ColorType, Decoder, Encoder, Transformations};

/// A picture of 8 bits for each number.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Grey or RGB, with or without alpha.
    pub(crate) color: ColorType,
    /// The numbers of each pixel one after the other.
    bytes: Vec<u8>,
}

impl Picture {
    /// Reads any PNG. A palette becomes RGB, and 16 bits become 8.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let decode = || -> Result<Self> {
            let mut decoder = Decoder::new(BufReader::new(File::open(path)?));
            decoder.set_transformations(Transformations::normalize_to_color8());
            let mut reader = decoder.read_info()?;
            let size = reader.output_buffer_size().context("it is too large")?;
            let mut bytes = vec![0; size];
            let info = reader.next_frame(&mut bytes)?;
            bytes.truncate(info.buffer_size());
            let (width, height) = (info.width as usize, info.height as usize);
            Ok(Self { width, height, color: info.color_type, bytes })
        };
        decode().with_context(|| format!("read the picture {}", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let encode = || -> Result<()> {
            let mut file = Vec::new();
            let mut encoder = Encoder::new(&mut file, self.width as u32, self.height as u32);
            encoder.set_color(self.color);
            encoder.write_header()?.write_image_data(&self.bytes)?;
            Ok(fs::write(path, file)?)
        };
        encode().with_context(|| format!("write the picture {}", path.display()))
    }

    /// A picture with soft and with sharp edges.
    pub(crate) fn test() -> Self {
        let (width, height) = (512, 384);
        let pixel = |i: usize| {
            let (x, y) = (i % width, i / width);
            let distance = (x as f64 - 256.0).hypot(y as f64 - 192.0);
            let ring =
                if (distance / 24.0) as usize % 2 == 1 && distance < 170.0 { 255 } else { 0 };
            let square = if (x / 32 + y / 32) % 2 == 0 { 200 } else { 40 };
            [(x / 2) as u8, ring, square]
        };
        let bytes = (0..width * height).flat_map(pixel).collect();
        Self { width, height, color: ColorType::Rgb, bytes }
    }

    /// The planes of the colours (C, 1, H, W), without alpha.
    pub(crate) fn planes(&self, device: &Device) -> CandleResult<Tensor> {
        let (samples, colors) = (self.color.samples(), self.colors());
        let plane = |color| self.bytes.iter().skip(color).step_by(samples);
        let numbers = (0..colors).flat_map(plane).map(|&byte| f32::from(byte) / 255.0);
        Tensor::from_iter(numbers, device)?.reshape((colors, 1, self.height, self.width))
    }

    /// This picture with the colours `planes` (C, F, H, W) and its own alpha. Of several planes for a
    /// colour it takes the Euclidean norm.
    pub(crate) fn with_planes(&self, planes: &Tensor) -> CandleResult<Self> {
        let planes = match planes.dim(1)? {
            1 => planes.clone(),
            _ => planes.sqr()?.sum_keepdim(1)?.sqrt()?,
        };
        let planes = planes.reshape((self.colors(), ()))?.to_vec2::<f32>()?;
        let mut picture = self.clone();
        for (pixel, bytes) in picture.bytes.chunks_mut(self.color.samples()).enumerate() {
            for (byte, plane) in bytes.iter_mut().zip(&planes) {
                *byte = (plane[pixel] * 255.0).round() as u8; // numbers out of range become 0 or 255
            }
        }
        Ok(picture)
    }

    /// The numbers of a pixel without alpha.
    fn colors(&self) -> usize {
        match self.color {
            ColorType::Grayscale | ColorType::GrayscaleAlpha => 1,
            _ => 3,
        }
    }
}
