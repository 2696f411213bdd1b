//! A small dataset of every kind.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use candelabrum_datasets::{
    Augmentation, CsvConfig, CsvTable, Dataset, Error, FnDataset, ImageDataset, ImageFolder,
    ImagePipeline, Mnist, Pass, RandomResizedCrop, Record, RecordDataset, RecordWriter, Remainder,
    Result, ShardOptions, Shards, Subset, TensorDataset, TextDataset, TokenWidth,
};
use candle_core::{Device, Tensor};
use image::{GrayImage, Luma};

use super::contents::Open;
use crate::records::write_tar;

/// What is done with a dataset of each kind.
pub(crate) trait ForEach {
    fn run<D: Dataset<Batch: Open>>(&mut self, kind: &str, data: Arc<D>);
}

/// Calls `each` with a dataset of every kind. The files are in `folder`.
pub(crate) fn for_each_kind(folder: &Path, each: &mut impl ForEach) {
    each.run("a function", Arc::new(noisy(29)));
    each.run("tensors in memory", Arc::new(tensors()));
    each.run("images in memory", Arc::new(digits()));
    each.run("a table", Arc::new(table().dataset().unwrap()));
    each.run("a text", Arc::new(TextDataset::new(tokens(), 6, 5).unwrap()));
    each.run("a file of tokens", Arc::new(token_file(folder)));
    each.run("a folder of images", Arc::new(pictures(folder, false)));
    each.run("a folder with a corrupt image", Arc::new(pictures(folder, true)));
    each.run("shards", Arc::new(numbers(mixed_shards(folder))));
    let part = Subset::new(numbers(mixed_shards(folder)), 1, 2, Remainder::Drop).unwrap();
    each.run("a part of shards", Arc::new(part));
}

/// Numbers with noise that is another one in each epoch.
pub(crate) fn noisy(len: usize) -> impl Dataset<Batch = (Tensor, Tensor)> {
    FnDataset::new("noisy", len, |sample, pass: &Pass| {
        let noise = if pass.training { pass.rng(sample).uniform(-1.0, 1.0) } else { 0.0 };
        Ok((sample as u32, noise))
    })
}

fn tensors() -> TensorDataset<(Tensor, Tensor)> {
    let xs = Tensor::arange(0_f32, 66.0, &Device::Cpu).unwrap().reshape((22, 3)).unwrap();
    TensorDataset::pair(xs, Tensor::arange(500_i64, 522, &Device::Cpu).unwrap()).unwrap()
}

fn digits() -> ImageDataset {
    Mnist::synthetic(0, 23, 1).unwrap().train.augmented(Augmentation::crop_and_flip())
}

fn table() -> CsvTable {
    let rows: String = (0..31).map(|i| format!("{i},{},class {}\n", i * i, i % 5)).collect();
    let text = format!("x,y,class\n{rows}");
    CsvTable::read(text.as_bytes(), "table.csv", &CsvConfig::class("class")).unwrap()
}

/// Tokens, some of which need two bytes.
pub(crate) fn tokens() -> Vec<u32> {
    (0..140).map(|i| i * i % 300).collect()
}

/// The windows of [`tokens`] that lie in a file.
pub(crate) fn token_file(folder: &Path) -> TextDataset {
    let path = folder.join("tokens.u16");
    let bytes: Vec<u8> = tokens().iter().flat_map(|&token| (token as u16).to_le_bytes()).collect();
    fs::write(&path, bytes).unwrap();
    TextDataset::open_tokens(&path, TokenWidth::U16, 6, 5).unwrap()
}

/// 17 images of different sizes in three classes, with random windows in training.
fn pictures(folder: &Path, corrupt: bool) -> ImageFolder {
    let root = folder.join(if corrupt { "corrupt" } else { "pictures" });
    for number in 0..17_u32 {
        let class = root.join(format!("class {}", number % 3));
        fs::create_dir_all(&class).unwrap();
        let pixel = |x, y| Luma([(number * 13 + x * 3 + y * 7) as u8]);
        let image = GrayImage::from_fn(9 + number % 4, 8 + number % 5, pixel);
        image.save(class.join(format!("{number:02}.png"))).unwrap();
    }
    let crop = RandomResizedCrop::inception();
    let pipeline = ImagePipeline::gray([5, 6]).unwrap().cropped(crop).unwrap();
    if corrupt {
        fs::write(root.join("class 1/07.png"), "no image").unwrap();
        return ImageFolder::open(root, pipeline).unwrap().skipping_corrupt();
    }
    ImageFolder::open(root, pipeline).unwrap()
}

/// A shard of records with these numbers.
pub(crate) fn write_numbers(path: &Path, numbers: impl IntoIterator<Item = u32>) {
    let mut writer = RecordWriter::create(path).unwrap();
    for number in numbers {
        writer.write(number.to_string().as_bytes()).unwrap();
    }
    writer.finish().unwrap();
}

/// Two files of records and a tar file between them, with the numbers from 0 to 36.
fn mixed_shards(folder: &Path) -> Shards {
    let paths: Vec<PathBuf> =
        ["a.tfrecord", "b.tar", "c.tfrecord"].map(|name| folder.join(name)).into();
    write_numbers(&paths[0], 0..11);
    let files: Vec<(String, String)> =
        (11..25).map(|number| (format!("{number}.txt"), number.to_string())).collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, content)| (&**name, content.as_bytes())).collect();
    write_tar(&paths[1], &files);
    write_numbers(&paths[2], 25..37);
    Shards::open(paths, &ShardOptions::default()).unwrap()
}

/// The numbers in shards, as (1,) tensors of f32, with a random number of the pass beside each.
pub(crate) fn numbers(shards: Shards) -> impl Dataset<Batch = (Tensor, Tensor)> {
    RecordDataset::new("numbers", shards, |record: &Record, pass: &Pass| -> Result<_> {
        let text = std::str::from_utf8(record.data()).map_err(Error::custom)?;
        let number: u32 = text.parse().map_err(Error::custom)?;
        let random = if pass.training { pass.rng(record.sample()).below(1 << 30) } else { 0 };
        Ok((Tensor::new(&[number as f32], &Device::Cpu)?, random))
    })
}
