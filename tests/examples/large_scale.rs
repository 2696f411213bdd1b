//! Large batches, and ResNet on images as ImageNet has them.

use std::fs::{self, File};
use std::path::Path;

use candelabrum::prelude::Pass;
use png::{ColorType, Encoder};

use crate::learning::last_number;
use crate::precision::few_digits;
use crate::run::{output_of, refuse};

#[test]
fn large_batches_learn_by_each_optimizer() {
    let data = few_digits(512, 128);
    let digits = format!("--data-dir {} --threads 1", data.path().display());
    let output = |options: &str| output_of("large_batch", &format!("{digits} {options}"));
    // The rate is that of half of 256 images, with LAMB by the square root.
    for (optimizer, lr, rate) in
        [("sgd", "0.1", "0.0500"), ("lars", "0.4", "0.2000"), ("lamb", "0.01", "0.0071")]
    {
        let ranks = "--workers 2 --batch-size 64 --epochs 8";
        let text = output(&format!("{ranks} --optimizer {optimizer} --lr {lr}"));
        assert!(text.contains("512 images, 32 steps of 128, "), "{text}");
        assert!(text.contains(&format!(" at {rate} after 3 steps\n")), "{text}");
        assert!(last_number(&text, "Evaluation accuracy =") > 0.5, "{optimizer}: {text}");
    }
    // The micro-batches of a step count together.
    let parts = "--batch-size 32 --accumulate 16 --warmup 1 --epochs 1";
    assert!(output(parts).contains("1 steps of 512, Lars at 0.2000 after 1 steps\n"));
    let other = format!("{digits} --optimizer adam");
    refuse("large_batch", &other, &["lars and lamb, not Adam"]);
}

/// Images of two classes: the first one is dark.
fn folder_of_images(root: &Path, each: usize) {
    for (class, light) in [("night", 0), ("noon", 128)] {
        let folder = root.join(class);
        fs::create_dir_all(&folder).unwrap();
        for image in 0..each {
            let file = File::create(folder.join(format!("{image}.png"))).unwrap();
            let mut encoder = Encoder::new(file, 40, 36);
            encoder.set_color(ColorType::Rgb);
            let mut noise = Pass::evaluation().rng(image);
            let pixels: Vec<u8> =
                (0..3 * 40 * 36).map(|_| light + noise.below(128) as u8).collect();
            encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        }
    }
}

#[test]
fn a_resnet_learns_made_up_images_and_a_folder_of_images() {
    let small = "--network resnet18 --size 32 --batch-size 8 --threads 1 --epochs 3";
    let text = output_of("resnet_imagenet", &format!("{small} --images 64 --workers 2"));
    let opening = "made-up images: 64 training and 16 validation images of 8 classes, 32×32\n";
    assert!(text.starts_with(opening) && text.contains("ResNet18: 11180616 parameters"), "{text}");
    // So few steps do not move the running statistics, with which the model is evaluated.
    assert!(last_number(&text, "training accuracy =") > 0.3, "{text}");

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let folder = format!("{small} --data-dir {root}");
    refuse("resnet_imagenet", &folder, &[root, "train"]);
    folder_of_images(&dir.path().join("train"), 12);
    folder_of_images(&dir.path().join("val"), 4);
    let text = output_of("resnet_imagenet", &folder);
    assert!(
        text.starts_with("image folder: 24 training and 8 validation images of 2 classes"),
        "{text}"
    );
    assert!(last_number(&text, "training accuracy =") > 0.6, "{text}");
}

#[test]
fn resnet_50_takes_a_step() {
    let text = output_of("resnet_imagenet", "--size 32 --images 4 --batch-size 4 --epochs 1");
    assert!(text.contains("ResNet50: 23524424 parameters"), "{text}");
    assert!(text.contains("Training loss = "), "{text}");
}
