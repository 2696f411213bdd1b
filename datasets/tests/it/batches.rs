//! From a dataset of images to tensors. Ranks, threads and positions are those of `loader`, for images, too.

use candelabrum_datasets::{
    Augmentation, BatchOptions, Batches, DistributedSampler, ImageDataset, Mnist, Remainder,
    SamplerConfig, Scaling,
};
use candle_core::{DType, Tensor};

fn digits() -> ImageDataset {
    Mnist::synthetic(0, 103, 1).unwrap().train
}

fn sampler(global_rank: usize, world_size: usize, batch_size: usize) -> DistributedSampler {
    DistributedSampler::new(SamplerConfig {
        len: 103,
        global_rank,
        world_size,
        batch_size,
        seed: 5,
        shuffle: true,
        remainder: Remainder::Keep,
    })
    .unwrap()
}

/// Every image of an epoch as floats with its label, batch by batch.
fn epoch(
    data: &ImageDataset,
    sampler: &DistributedSampler,
    epoch: usize,
    options: &BatchOptions,
) -> Vec<Vec<(Vec<f32>, u32)>> {
    read(data.epoch_batches(sampler, epoch, options).unwrap())
}

/// Every image as floats with its label, batch by batch.
fn read(batches: Batches) -> Vec<Vec<(Vec<f32>, u32)>> {
    let rows = |batch: candelabrum_datasets::Result<candelabrum_datasets::Batch>| {
        let batch = batch.unwrap();
        let images = batch.xs.flatten_from(1).unwrap().to_vec2().unwrap();
        images.into_iter().zip(batch.ys.to_vec1().unwrap()).collect()
    };
    batches.map(rows).collect()
}

#[test]
fn batches_in_order_hold_every_image_once_scaled_to_the_unit_interval() {
    let data = digits();
    let mut next = 0;
    for batch in data.batches(20).unwrap() {
        let batch = batch.unwrap();
        assert_eq!(batch.xs.dims4().unwrap(), (batch.len(), 1, 28, 28));
        assert_eq!(batch.len(), if next == 100 { 3 } else { 20 });
        let images: Vec<Vec<f32>> = batch.xs.flatten_from(1).unwrap().to_vec2().unwrap();
        for (image, label) in images.iter().zip(batch.ys.to_vec1::<u32>().unwrap()) {
            let (bytes, expected) = data.get(next).unwrap();
            assert_eq!(label, expected);
            assert!(image.iter().zip(bytes).all(|(&x, &byte)| x == f32::from(byte) / 255.0));
            next += 1;
        }
    }
    assert_eq!(next, 103);
}

#[test]
fn a_view_augments_a_sample_as_the_whole_does() {
    let data = digits();
    let options =
        BatchOptions { augment: Some(Augmentation::crop_only()), ..BatchOptions::default() };
    let in_order = |data: &ImageDataset| {
        let sampler = DistributedSampler::sequential(data.len(), 1000).unwrap();
        epoch(data, &sampler, 0, &options).concat()
    };
    let second_half = data.partition(1, 2, Remainder::Drop).unwrap();
    assert_eq!(in_order(&second_half), in_order(&data)[51..102]);
}

#[test]
fn ranks_without_samples_get_empty_batches_and_stay_in_step() {
    let data = digits();
    let batches: Vec<_> = data
        .epoch_batches(&sampler(3, 4, 25), 0, &BatchOptions::default())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(batches.len(), 2);
    assert!(batches[1].is_empty());
    assert_eq!(batches[1].xs.dims(), [0, 1, 28, 28]);
}

#[test]
fn skipped_steps_leave_the_rest_of_the_epoch_unchanged() {
    let data = digits();
    let all = epoch(&data, &sampler(0, 1, 10), 0, &BatchOptions::default());
    for first_step in [0, 3, 11, 99] {
        let options = BatchOptions::default();
        let rest = data.epoch_batches_from(&sampler(0, 1, 10), 0, first_step, &options).unwrap();
        assert_eq!(read(rest), all[first_step.min(11)..]);
    }
}

#[test]
fn standardized_pixels_have_the_mean_removed() {
    let data = ImageDataset::new(vec![0, 255], vec![0, 0], [1, 1, 1], 1).unwrap();
    let options =
        BatchOptions { scaling: Scaling::standardized([0.5], [0.25]), ..BatchOptions::default() };
    let sampler = DistributedSampler::sequential(2, 2).unwrap();
    let batch = data.epoch_batches(&sampler, 0, &options).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.xs.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [-2.0, 2.0]);
}

#[test]
fn images_come_in_the_type_of_the_options() {
    let options = BatchOptions { dtype: DType::BF16, ..BatchOptions::default() };
    let exact = digits().epoch_batches(&sampler(0, 1, 4), 0, &BatchOptions::default()).unwrap();
    let half = digits().epoch_batches(&sampler(0, 1, 4), 0, &options).unwrap();
    for (half, exact) in half.zip(exact) {
        let (half, exact) = (half.unwrap(), exact.unwrap());
        assert_eq!((half.xs.dtype(), half.ys.dtype()), (DType::BF16, DType::U32));
        let rounded = exact.xs.to_dtype(DType::BF16).unwrap();
        let numbers = |xs: &Tensor| {
            xs.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(numbers(&half.xs), numbers(&rounded));
    }
}

#[test]
fn a_scaling_for_another_number_of_channels_is_an_error() {
    let options = BatchOptions { scaling: Scaling::IMAGENET, ..BatchOptions::default() };
    let error = digits().epoch_batches(&sampler(0, 1, 4), 0, &options).unwrap_err().to_string();
    assert!(error.contains("3 means") && error.contains("1 channel"), "{error}");
}

#[test]
fn a_sampler_for_another_dataset_is_an_error() {
    let sampler = DistributedSampler::sequential(50, 10).unwrap();
    let error = digits().epoch_batches(&sampler, 0, &BatchOptions::default()).unwrap_err();
    let expected = "the sampler counts 50 samples, the dataset has 103";
    assert!(error.to_string().starts_with(expected), "{error}");
    let error = digits().batches(0).unwrap_err().to_string();
    assert_eq!(error, "--batch-size 0: a batch needs at least 1 sample");
}

#[test]
fn leaving_an_epoch_early_does_not_hang() {
    let data = digits();
    for taken in 0..5 {
        let batches = data.epoch_batches(&sampler(0, 1, 4), 0, &BatchOptions::default()).unwrap();
        assert_eq!(batches.take(taken).count(), taken);
    }
}
