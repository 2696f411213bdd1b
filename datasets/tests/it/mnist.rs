//! Four files as one dataset.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::mnist_files::{gzip, images, labels, write_good};
use candelabrum_datasets::{DataFault, Error, Mnist, Remainder};

/// Opens a directory of good files after `spoil` has changed it.
fn open_after(spoil: impl FnOnce(&Path)) -> Result<Mnist, Error> {
    let dir = tempfile::tempdir().unwrap();
    write_good(dir.path());
    spoil(dir.path());
    Mnist::open(dir.path())
}

/// The message after `spoil`, which must be one line.
fn message_after(spoil: impl FnOnce(&Path)) -> String {
    let message = open_after(spoil).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn files_are_found_under_each_of_their_names() {
    let data = open_after(|_| {}).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (3, 2));
    assert_eq!(data.train.image_shape(), [1, 28, 28]);
    let (image, label) = data.train.get(1).unwrap();
    assert_eq!((image[0], image[1], label), ((784 % 256) as u8, (785 % 256) as u8, 0));
    assert_eq!(data.test.get(0).unwrap().1, 7);
}

#[test]
fn missing_files_are_named_together_with_the_four_that_belong_there() {
    let message = message_after(|dir| {
        fs::remove_file(dir.join("train-labels.idx1-ubyte")).unwrap();
    });
    assert!(message.contains("train-labels-idx1-ubyte not found"), "{message}");
    assert!(message.contains("t10k-images-idx3-ubyte"), "{message}");
    let error = Mnist::open("/no/such/directory").unwrap_err();
    assert!(matches!(error, Error::Data { fault: DataFault::Missing, .. }), "{error}");
    let error = error.to_string();
    assert!(error.starts_with("/no/such/directory: no such folder: "), "{error}");
    assert!(error.contains("t10k-labels-idx1-ubyte"), "{error}");
}

#[test]
fn images_and_labels_that_differ_in_number_name_both_files_and_counts() {
    let message = message_after(|dir| {
        fs::write(dir.join("train-labels.idx1-ubyte"), labels(&[1, 2])).unwrap();
    });
    for part in ["train-images-idx3-ubyte: 3 images", "train-labels.idx1-ubyte holds 2"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_label_of_17_names_file_index_and_label() {
    let message = message_after(|dir| {
        fs::write(dir.join("t10k-labels.idx1-ubyte.gz"), gzip(&labels(&[3, 17]))).unwrap();
    });
    assert!(message.contains("t10k-labels.idx1-ubyte.gz: label 17 at index 1"), "{message}");
}

#[test]
fn images_of_another_size_are_refused() {
    let message = message_after(|dir| {
        fs::write(dir.join("train-images-idx3-ubyte"), images(3, 32, 28)).unwrap();
    });
    assert!(message.contains("train-images-idx3-ubyte: images of 32 x 28"), "{message}");
}

#[test]
fn a_directory_in_place_of_a_file_is_named() {
    let message = message_after(|dir| {
        fs::remove_file(dir.join("train-images-idx3-ubyte")).unwrap();
        fs::create_dir(dir.join("train-images-idx3-ubyte")).unwrap();
    });
    assert!(message.contains("train-images-idx3-ubyte: a directory"), "{message}");
}

/// The directory of the real files, if this machine has them.
fn real_mnist() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let shared = repository.join("../shared/data/mnist");
    let named = env::var_os("MNIST_DIR").map(PathBuf::from);
    [Some(shared), named].into_iter().flatten().find(|dir| Mnist::open(dir).is_ok())
}

#[test]
fn the_real_mnist_reads_as_known() {
    let Some(dir) = real_mnist() else {
        println!("left out: no MNIST in ../shared/data/mnist or $MNIST_DIR");
        return;
    };
    let data = Mnist::open(dir).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (60_000, 10_000));
    let first: Vec<u32> = (0..8).filter_map(|i| data.train.get(i)).map(|(_, l)| l).collect();
    assert_eq!(first, [5, 0, 4, 1, 9, 2, 1, 3]);
    let sum: u64 = (0..60_000)
        .filter_map(|i| data.train.get(i))
        .map(|(image, _)| image.iter().map(|&x| u64::from(x)).sum::<u64>())
        .sum();
    let mean = sum as f64 / (60_000.0 * 784.0 * 255.0);
    assert!((mean - 0.1307).abs() < 1e-4, "{mean}");
    let share = data.partition(6, 7, Remainder::Drop).unwrap();
    assert_eq!((share.train.len(), share.train.dropped(), share.test.dropped()), (8_571, 3, 4));
}
