//! CIFAR from its files and archives, good and bad, and what stands for it.

use std::{fs, path::Path};

use candelabrum_datasets::{
    DataFault, DataRequest, DatasetKind, Environment, Error, ImageSet, ImageSplit, Result, locate,
};
use tar::{Builder, Header};

use crate::mnist_files::gzip;

const PIXELS: usize = 3 * 32 * 32;

/// A record with these labels whose pixels begin with this byte.
fn record(labels: &[u8], first: u8) -> Vec<u8> {
    let pixels = (0..PIXELS).map(|place| first.wrapping_add((place / 1024) as u8));
    labels.iter().copied().chain(pixels).collect()
}

/// The names and the contents of the files of a set: 2 records in each.
fn files(set: ImageSet) -> Vec<(String, Vec<u8>)> {
    let names: Vec<String> = match set {
        ImageSet::Cifar10 => (1..=5)
            .map(|batch| format!("data_batch_{batch}.bin"))
            .chain(["test_batch.bin".to_owned()])
            .collect(),
        _ => ["train.bin", "test.bin"].map(str::to_owned).into(),
    };
    let labels = |label: u8| match set {
        ImageSet::Cifar10 => vec![label % 10],
        _ => vec![label % 20, 90 + label % 10],
    };
    let content = |file: u8| [0, 1].map(|i| record(&labels(2 * file + i), 10 * file + i)).concat();
    names.into_iter().zip(0..).map(|(name, file)| (name, content(file))).collect()
}

fn write(set: ImageSet, dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    files(set).iter().for_each(|(name, content)| fs::write(dir.join(name), content).unwrap());
}

/// An archive of these files in a folder, in another order than that of their names.
fn archive(folder: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append_data(&mut header, format!("{folder}/{name}"), content).unwrap();
    };
    add("batches.meta.txt", b"airplane\n");
    files.iter().rev().for_each(|(name, content)| add(name, content));
    builder.into_inner().unwrap()
}

const SETS: [(ImageSet, &str, &str); 2] = [
    (ImageSet::Cifar10, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    (ImageSet::Cifar100, "cifar-100-binary", "cifar-100-binary.tar.gz"),
];

fn labels(images: &candelabrum_datasets::ImageDataset) -> Vec<u32> {
    (0..images.len()).map(|index| images.get(index).unwrap().1).collect()
}

fn message(opened: Result<ImageSplit>, expected: DataFault) -> String {
    let error = opened.unwrap_err();
    assert!(matches!(error, Error::Data { fault, .. } if fault == expected), "{error}");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn files_their_folder_and_the_archive_give_the_same_images() {
    for (set, folder, name) in SETS {
        let dir = tempfile::tempdir().unwrap();
        write(set, &dir.path().join("plain"));
        write(set, &dir.path().join("below").join(folder));
        fs::create_dir(dir.path().join("packed")).unwrap();
        let packed = gzip(&archive(folder, &files(set)));
        fs::write(dir.path().join("packed").join(name), packed).unwrap();
        let opened =
            ["plain", "below", "packed"].map(|kind| set.open(dir.path().join(kind)).unwrap());
        for ImageSplit { train, test } in &opened {
            assert_eq!(train.image_shape(), [3, 32, 32]);
            assert_eq!(train.sha256(), opened[0].train.sha256());
            assert_eq!(test.sha256(), opened[0].test.sha256());
        }
        let ImageSplit { train, test } = &opened[0];
        let (image, _) = train.get(1).unwrap();
        assert_eq!(
            [image[0], image[1023], image[1024], image[3071]],
            [1, 1, 2, 3],
            "plane by plane"
        );
        if set == ImageSet::Cifar10 {
            assert_eq!((labels(train), labels(test)), ((0..10).collect(), vec![0, 1]));
            assert_eq!(train.classes(), 10);
        } else {
            assert_eq!(
                (labels(train), labels(test)),
                (vec![90, 91], vec![92, 93]),
                "the fine ones"
            );
            assert_eq!(train.classes(), 100);
        }
    }
}

#[test]
fn a_file_one_byte_short_is_named_with_its_last_record() {
    for (set, folder, name) in SETS {
        let dir = tempfile::tempdir().unwrap();
        let mut files = files(set);
        let (short, content) = &mut files[0];
        content.pop();
        let (short, bytes) = (short.clone(), content.len());
        write(set, dir.path());
        fs::write(dir.path().join(&short), &files[0].1).unwrap();
        let text = message(set.open(dir.path()), DataFault::CutShort);
        let record = bytes.div_ceil(2);
        assert!(text.contains(&format!("{short}: record 1 has {} bytes", record - 1)), "{text}");
        assert!(text.contains(&format!("where {record} are needed")), "{text}");

        let packed = tempfile::tempdir().unwrap();
        fs::write(packed.path().join(name), gzip(&archive(folder, &files))).unwrap();
        let text = message(set.open(packed.path()), DataFault::CutShort);
        assert!(text.contains(&format!("{name}/{folder}/{short}: record 1")), "{text}");
        fs::write(dir.path().join(&short), b"").unwrap();
        message(set.open(dir.path()), DataFault::CutShort);
    }
}

#[test]
fn a_label_outside_is_named_with_file_and_record() {
    let dir = tempfile::tempdir().unwrap();
    write(ImageSet::Cifar10, dir.path());
    let path = dir.path().join("data_batch_4.bin");
    fs::write(&path, [record(&[9], 0), record(&[10], 0)].concat()).unwrap();
    let text = message(ImageSet::Cifar10.open(dir.path()), DataFault::Corrupt);
    let expected = "data_batch_4.bin: label 10 at index 1, labels must be below 10";
    assert!(text.ends_with(expected), "{text}");

    write(ImageSet::Cifar100, dir.path());
    for (wrong, expected) in [([20, 0], "label 20"), ([3, 100], "label 100")] {
        fs::write(dir.path().join("test.bin"), record(&wrong, 0)).unwrap();
        let text = message(ImageSet::Cifar100.open(dir.path()), DataFault::Corrupt);
        assert!(text.contains(&format!("test.bin: {expected} at index 0")), "{text}");
    }
}

#[test]
fn archives_that_are_cut_or_lack_a_file_and_empty_folders_are_named() {
    let (set, folder, name) = SETS[0];
    let dir = tempfile::tempdir().unwrap();
    let text = message(set.open(dir.path()), DataFault::Missing);
    for part in ["cifar-10-binary.tar.gz", "data_batch_1.bin", "test_batch.bin"] {
        assert!(text.contains(part), "{text}");
    }
    let whole = gzip(&archive(folder, &files(set)));
    fs::write(dir.path().join(name), &whole[..whole.len() / 2]).unwrap();
    let text = message(set.open(dir.path()), DataFault::Corrupt);
    assert!(text.contains(&format!("{name}: damaged or cut short")), "{text}");
    fs::write(dir.path().join(name), gzip(&archive(folder, &files(set)[..4]))).unwrap();
    let text = message(set.open(dir.path()), DataFault::Missing);
    assert!(text.contains(&format!("{folder}/data_batch_5.bin: not in the archive")), "{text}");
}

#[test]
fn digits_in_color_stand_for_cifar() {
    for set in [ImageSet::Cifar10, ImageSet::Cifar100] {
        let ImageSplit { train, test } = set.synthetic(1, 1000, 100).unwrap();
        assert_eq!((train.len(), test.len(), train.image_shape()), (1000, 100, [3, 32, 32]));
        let labels = labels(&train);
        let classes = train.classes() as u32;
        let seen: std::collections::BTreeSet<u32> = labels.iter().copied().collect();
        assert!(seen.len() as u32 > classes - 3, "{} of {classes} classes", seen.len());
        let again = set.synthetic(1, 10, 10).unwrap();
        assert!((0..10).all(|index| again.train.get(index) == train.get(index)));
        assert_ne!(set.synthetic(2, 10, 10).unwrap().train.sha256(), again.train.sha256());
        assert_ne!(test.get(0).unwrap().0, train.get(0).unwrap().0);
        // The planes differ, and the border is paper.
        let (image, _) = train.get(3).unwrap();
        assert_ne!(image[..1024], image[1024..2048]);
        assert!(image[..32].iter().all(|&pixel| pixel == image[0]));
    }
    let digits = ImageSet::FashionMnist.synthetic(1, 10, 10).unwrap();
    assert_eq!(digits.train.image_shape(), [1, 28, 28]);
}

#[test]
fn the_set_of_a_request_is_the_one_that_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    write(ImageSet::Cifar10, dir.path());
    let environment = Environment {
        mnist_dir: Some(dir.path().join("no digits are asked for")),
        candelabrum_cache: Some(dir.path().join("cache")),
        ..Environment::default()
    };
    let of = |kind, set| DataRequest {
        kind,
        set,
        environment: environment.clone(),
        ..DataRequest::default()
    };
    let named = DataRequest {
        data_dir: Some(dir.path().into()),
        ..of(DatasetKind::Cifar10, ImageSet::Mnist)
    };
    let loaded = locate(&named).unwrap().open().unwrap();
    assert_eq!((loaded.name, loaded.train.len()), ("cifar10", 10));
    let other = DataRequest { kind: DatasetKind::Cifar100, ..named };
    let text = locate(&other).unwrap_err().to_string();
    assert!(text.contains("cifar-100-binary.tar.gz") && text.contains("train.bin"), "{text}");

    let located = locate(&of(DatasetKind::Auto, ImageSet::Cifar10)).unwrap();
    let note = located.note.unwrap();
    assert!(
        note.starts_with("CIFAR-10 was not found, so this run trains on synthetic colored digits")
    );
    assert!(note.contains("cache/cifar10") && !note.contains("MNIST_DIR"), "{note}");
    assert_eq!(located.source.open().unwrap().train.classes(), 10);
    let text = locate(&of(DatasetKind::FashionMnist, ImageSet::Mnist)).unwrap_err().to_string();
    assert!(text.starts_with("fashion-mnist not found: not in the cache"), "{text}");
}
