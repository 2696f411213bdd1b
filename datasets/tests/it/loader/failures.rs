//! Errors of the data arrive in the place of their batch and say where they come from.

use std::{fs, sync::Arc};

use candelabrum_datasets::{
    DistributedSampler, Error, FnDataset, Loader, LoaderOptions, ShardOptions, Shards,
};
use candle_core::{DType, Device, Tensor};

use super::{
    contents::{loader, single},
    kinds::{noisy, numbers, token_file, write_numbers},
};

#[test]
fn a_damaged_record_ends_the_epoch_with_its_file_offset_step_and_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.tfrecord");
    write_numbers(&path, 1000..1020); // 4 bytes each, 20 with their frame
    let mut content = fs::read(&path).unwrap();
    content[13 * 20 + 12] ^= 1;
    fs::write(&path, content).unwrap();
    let data = numbers(Shards::open([&path], &ShardOptions::default()).unwrap());
    let data = Arc::new(data);
    for threads in [0, 1, 3] {
        let sampler = DistributedSampler::sequential(20, 3).unwrap();
        let mut batches = loader(&data, sampler, threads).epoch(2, 0).unwrap();
        let good = batches.by_ref().take_while(Result::is_ok).count();
        assert_eq!(good, 4, "the batches before it are given out");
        assert!(batches.next().is_none(), "and none after it");
        // The position is that of the batch that failed: after a repair the run goes on from there.
        assert_eq!(batches.position().step, 4);
        let mut again = loader(&data, sampler, threads).resume(batches.position()).unwrap();
        let error = again.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Batch { epoch: 2, step: 4, .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("epoch 2, step 4 (samples 12, 13, 14): "), "{text}");
        assert!(text.contains("numbers.tfrecord: at byte 260: wrong checksum"), "{text}");
    }
}

#[test]
fn a_file_of_tokens_that_loses_its_end_is_an_error_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = Arc::new(token_file(folder.path()));
    let file = fs::File::options().write(true).open(folder.path().join("tokens.u16")).unwrap();
    file.set_len(100).unwrap();
    let sampler = DistributedSampler::sequential(candelabrum_datasets::Dataset::len(&data), 2);
    let mut batches = loader(&data, sampler.unwrap(), 2).epoch(0, 0).unwrap();
    let text = batches.find_map(Result::err).unwrap().to_string();
    assert!(text.starts_with("epoch 0, step 4 (samples 8, 9): "), "{text}");
    assert!(text.contains("tokens.u16: cannot read"), "{text}");
}

#[test]
fn an_error_of_a_users_function_names_the_sample() {
    let data = FnDataset::new("odd", 10, |sample, _| match sample {
        7 => Err(Error::custom("seven is missing")),
        other => Ok(other as u32),
    });
    let sampler = DistributedSampler::sequential(10, 5).unwrap();
    let mut batches = loader(&Arc::new(data), sampler, 1).epoch(0, 0).unwrap();
    batches.next().unwrap().unwrap();
    let text = batches.next().unwrap().unwrap_err().to_string();
    assert_eq!(text, "epoch 0, step 1 (samples 5, 6, 7, 8, 9): sample 7: seven is missing");
}

#[test]
fn a_panic_in_a_users_function_is_an_error() {
    let data = FnDataset::new("panics", 4, |sample, _| {
        assert!(sample < 2, "sample {sample} is odd");
        Ok(sample as u32)
    });
    let sampler = DistributedSampler::sequential(4, 2).unwrap();
    let batches = loader(&Arc::new(data), sampler, 2).epoch(0, 0).unwrap();
    let text = batches.last().unwrap().unwrap_err().to_string();
    assert!(text.contains("panicked: sample 2 is odd"), "{text}");
}

#[test]
fn a_sampler_for_another_number_of_samples_is_an_error() {
    let data = Arc::new(noisy(10));
    let error = Loader::new(data, single(9, 2, 0), LoaderOptions::default()).unwrap_err();
    let expected = "the sampler counts 9 samples, the dataset has 10";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn batches_have_the_types_of_the_options() {
    let data = FnDataset::new("types", 6, |sample, _| {
        Ok((Tensor::full(sample as f64, (2, 3), &Device::Cpu)?, sample as i64))
    });
    let options = LoaderOptions { dtype: DType::BF16, ..LoaderOptions::default() };
    let sampler = DistributedSampler::sequential(6, 4).unwrap();
    let loader = Loader::new(Arc::new(data), sampler, options).unwrap();
    let dims: Vec<_> = loader
        .epoch(0, 0)
        .unwrap()
        .map(|batch| {
            let (xs, ys) = batch.unwrap();
            assert_eq!((xs.dtype(), ys.dtype()), (DType::BF16, DType::I64));
            (xs.dims().to_vec(), ys.dims().to_vec())
        })
        .collect();
    assert_eq!(dims, [(vec![4, 2, 3], vec![4]), (vec![2, 2, 3], vec![2])]);
}
