//! Folders of images: classes, sizes, windows, and files that are no images.

use std::{fs, os::unix::fs::symlink, path::Path};

use candelabrum_datasets::{
    Augmentation, Batch, DataFault, Dataset, Error, FolderOptions, ImageFolder, ImagePipeline,
    Pass, RandomResizedCrop, Resize, Scaling, Subset,
};
use image::{GrayImage, Luma, Rgb, RgbImage};
use tempfile::TempDir;

const EVALUATION: Pass = Pass::evaluation();

/// Writes a gray image whose pixels are `first`, `first + 1` and so on.
fn write_ramp(path: &Path, width: u32, height: u32, first: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let pixel = |x, y| Luma([first.wrapping_add((y * width + x) as u8)]);
    GrayImage::from_fn(width, height, pixel).save(path).unwrap();
}

/// Two classes with images of different sizes and formats: cat/a.png, cat/b.jpg, dog/c.PNG.
fn pets() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write_ramp(&root.path().join("cat/a.png"), 4, 2, 10);
    write_ramp(&root.path().join("cat/b.jpg"), 30, 17, 0);
    let colored = RgbImage::from_fn(5, 9, |x, y| Rgb([x as u8 * 50, y as u8 * 25, 200]));
    fs::create_dir_all(root.path().join("dog")).unwrap();
    colored.save_with_format(root.path().join("dog/c.PNG"), image::ImageFormat::Png).unwrap();
    root
}

fn open(root: &TempDir, pipeline: ImagePipeline) -> ImageFolder {
    ImageFolder::open(root.path(), pipeline).unwrap()
}

fn gray(size: [usize; 2]) -> ImagePipeline {
    ImagePipeline::gray(size).unwrap()
}

/// The pixels of each image of a batch, in units of 1/255.
fn pixels(batch: &Batch) -> Vec<Vec<u8>> {
    let rows: Vec<Vec<f32>> = batch.xs.flatten_from(1).unwrap().to_vec2().unwrap();
    rows.into_iter().map(|row| row.iter().map(|x| (x * 255.0).round() as u8).collect()).collect()
}

fn labels(batch: &Batch) -> Vec<u32> {
    batch.ys.to_vec1().unwrap()
}

#[test]
fn classes_and_files_are_in_the_order_of_their_names_and_nothing_else_counts() {
    let root = pets();
    for ignored in ["readme.txt", "cat/notes.txt", "cat/.hidden.png", "dog/.cache/x.png"] {
        fs::create_dir_all(root.path().join(ignored).parent().unwrap()).unwrap();
        fs::write(root.path().join(ignored), "no image").unwrap();
    }
    fs::create_dir(root.path().join(".cache")).unwrap();
    let data = open(&root, ImagePipeline::rgb([6, 8]).unwrap());
    assert_eq!((data.classes(), data.len()), (&["cat", "dog"].map(String::from)[..], 3));
    assert_eq!(data.left_out(), 5, "a hidden folder counts as one");
    assert!(format!("{data:?}").contains("left_out: 5"), "{data:?}");
    assert_eq!(data.file(1), Some((root.path().join("cat/b.jpg"), 0)));
    assert_eq!(data.file(3), None);
    let batch = data.read(&[2, 0, 1], &EVALUATION).unwrap();
    assert_eq!(batch.xs.dims(), [3, 3, 6, 8], "images of all sizes have one");
    assert_eq!(labels(&batch), [1, 0, 0]);
    assert_eq!(data.read(&[], &EVALUATION).unwrap().xs.dims(), [0, 3, 6, 8]);
    assert!(matches!(data.read(&[3], &EVALUATION), Err(Error::NoSuchSample { sample: 3, len: 3 })));
}

/// The paths of all samples, below the root.
fn paths(data: &ImageFolder, root: &TempDir) -> Vec<String> {
    let path = |sample| {
        let (path, _) = data.file(sample).unwrap();
        path.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned()
    };
    (0..data.len()).map(path).collect()
}

#[test]
fn images_below_a_class_belong_to_it_in_the_order_of_torchvision() {
    let root = tempfile::tempdir().unwrap();
    // The order of Python's `sorted(os.walk(class))` with `sorted(files)`, as in torchvision.
    let expected = [
        "cat/2.png",
        "cat/Z.png",
        "cat/b.png",
        "cat/a/1.png",
        "cat/a/9.png",
        "cat/a-b/1.png",
        "cat/a/c/1.png",
        "dog/only/below/1.png",
    ];
    for path in expected.iter().rev() {
        write_ramp(&root.path().join(path), 1, 1, 0);
    }
    let data = open(&root, gray([1, 1]));
    assert_eq!(paths(&data, &root), expected);
    let all: Vec<u32> = (0..8).collect();
    assert_eq!(labels(&data.read(&all, &EVALUATION).unwrap()), [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(data.left_out(), 0);
}

#[test]
fn pictures_that_are_not_read_are_an_error_unless_they_shall_be_left_out() {
    for (name, content) in [
        ("cat/x.webp", &b""[..]),
        ("cat/night/x.BMP", b""),
        ("cat/x.gif", b""),
        ("cat/x.tiff", b""),
        ("cat/x.heic", b""),
        ("cat/x.jfif", b""),
        ("cat/x.ppm", b""),
        ("cat/x.svg", b""),
        ("cat/without-ending", b"\x89PNG\r\n\x1a\n"),
        ("beside.png", b""),
        ("beside.webp", b""),
    ] {
        let root = pets();
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::write(root.path().join("dog/y.avif"), "").unwrap();
        let error = ImageFolder::open(root.path(), gray([1, 1])).unwrap_err().to_string();
        assert!(error.contains("2 picture(s) would be left out"), "{error}");
        assert!(error.contains(name) && error.contains("ignore_others"), "{error}");
        let options = FolderOptions { ignore_others: true, ..FolderOptions::default() };
        let data = ImageFolder::open_with(root.path(), gray([1, 1]), &options).unwrap();
        assert_eq!((data.len(), data.left_out()), (3, 2));
    }
    // A class without another picture is empty.
    let root = pets();
    fs::create_dir(root.path().join("elk")).unwrap();
    fs::write(root.path().join("elk/x.webp"), "").unwrap();
    let options = FolderOptions { ignore_others: true, ..FolderOptions::default() };
    let error =
        ImageFolder::open_with(root.path(), gray([1, 1]), &options).unwrap_err().to_string();
    assert!(error.contains("elk: no files with the ending png"), "{error}");
}

#[test]
fn links_count_as_what_they_lead_to_and_a_broken_one_or_a_loop_is_an_error() {
    let root = pets();
    let others = tempfile::tempdir().unwrap();
    write_ramp(&others.path().join("more/d.png"), 1, 1, 0);
    symlink(others.path().join("more"), root.path().join("dog/more")).unwrap();
    symlink(others.path().join("more/d.png"), root.path().join("cat/again.png")).unwrap();
    symlink(others.path().join("more"), root.path().join("elk")).unwrap();
    let data = open(&root, gray([1, 1]));
    let expected =
        ["cat/a.png", "cat/again.png", "cat/b.jpg", "dog/c.PNG", "dog/more/d.png", "elk/d.png"];
    assert_eq!(paths(&data, &root), expected);
    let error = |target: &Path, link: &str| {
        let link = root.path().join(link);
        symlink(target, &link).unwrap();
        let error = ImageFolder::open(root.path(), gray([1, 1])).unwrap_err().to_string();
        fs::remove_file(&link).unwrap();
        assert!(error.starts_with(link.to_str().unwrap()), "{error}");
        error
    };
    for link in ["cat/z.png", "cat/folder", "fox"] {
        assert!(error(Path::new("/no/such/place"), link).contains("cannot be followed"));
    }
    for (target, link) in [("..", "cat/up"), (".", "cat/self"), ("../cat", "cat/two")] {
        assert!(error(Path::new(target), link).contains("a folder that contains it"));
    }
    symlink("self", root.path().join("cat/.hidden")).unwrap();
    assert_eq!(open(&root, gray([1, 1])).left_out(), 1, "hidden links are not followed");
}

#[test]
fn more_classes_than_a_byte_can_name_are_possible() {
    let root = tempfile::tempdir().unwrap();
    for class in 0..300 {
        write_ramp(&root.path().join(format!("class-{class:03}/a.png")), 1, 1, 0);
    }
    let batch = open(&root, gray([1, 1])).read(&[299, 256], &EVALUATION).unwrap();
    assert_eq!(labels(&batch), [299, 256]);
}

#[test]
fn a_second_folder_has_the_labels_of_the_first() {
    let root = tempfile::tempdir().unwrap();
    for file in ["train/ant/a.png", "train/bee/a.png", "train/cat/a.png", "test/cat/b.png"] {
        write_ramp(&root.path().join(file), 1, 1, 0);
    }
    let train = ImageFolder::open(root.path().join("train"), gray([1, 1])).unwrap();
    let open =
        || ImageFolder::open_with_classes(root.path().join("test"), gray([1, 1]), train.classes());
    let test = open().unwrap();
    assert_eq!((test.classes(), test.len()), (train.classes(), 1));
    assert_eq!(labels(&test.read(&[0], &EVALUATION).unwrap()), [2], "not 0");
    write_ramp(&root.path().join("test/dog/a.png"), 1, 1, 0);
    let error = open().unwrap_err();
    assert!(error.to_string().contains("dog: not one of the 3 classes"), "{error}");
}

#[test]
fn an_image_of_the_right_size_keeps_its_pixels_and_colors_become_planes() {
    let root = pets();
    let batch = open(&root, gray([2, 4])).read(&[0], &EVALUATION).unwrap();
    assert_eq!(pixels(&batch), [[10, 11, 12, 13, 14, 15, 16, 17]]);
    let batch = open(&root, ImagePipeline::rgb([9, 5]).unwrap()).read(&[2], &EVALUATION).unwrap();
    let planes: Vec<Vec<Vec<f32>>> = batch.xs.squeeze(0).unwrap().to_vec3().unwrap();
    for (y, x) in [(0, 0), (8, 4), (3, 2)] {
        let colors = [0, 1, 2].map(|plane: usize| planes[plane][y][x] * 255.0);
        assert_eq!(colors.map(f32::round), [x as f32 * 50.0, y as f32 * 25.0, 200.0]);
    }
    let scaled = gray([2, 4]).scaled(Scaling::standardized([0.5], [0.5])).unwrap();
    let batch = open(&root, scaled).read(&[0], &EVALUATION).unwrap();
    let first = batch.xs.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0];
    assert_eq!(first, (10.0 / 255.0 - 0.5) / 0.5);
}

#[test]
fn the_window_of_an_evaluation_lies_in_the_center() {
    let root = tempfile::tempdir().unwrap();
    write_ramp(&root.path().join("a/wide.png"), 6, 2, 0); // rows 0..6, 6..12
    write_ramp(&root.path().join("a/white.png"), 3, 3, 255);
    let with = |resize, size| {
        let data = open(&root, gray(size).resized(resize).unwrap());
        pixels(&data.read(&[1], &EVALUATION).unwrap()).remove(0)
    };
    assert_eq!(with(Resize::Cover, [2, 2]), [2, 3, 8, 9]);
    assert_eq!(with(Resize::Cover, [1, 3]), with(Resize::Stretch, [1, 3]));
    assert_eq!(with(Resize::Shorter(2), [2, 2]), [2, 3, 8, 9]);
    assert_eq!(with(Resize::Shorter(4), [2, 2])[0], 2, "one pixel of the original");
    assert_eq!(with(Resize::Stretch, [2, 6]), (0..12).collect::<Vec<_>>());
    let error = gray([200, 224]).resized(Resize::Shorter(223)).unwrap_err().to_string();
    assert!(
        error.starts_with("a shorter side of 223 pixels has no window of 200 x 224"),
        "{error}"
    );
    assert!(ImagePipeline::rgb([0, 5]).is_err() && ImagePipeline::gray([5, 1 << 17]).is_err());
    let error = gray([1, 1]).scaled(Scaling::IMAGENET).unwrap_err().to_string();
    assert!(error.contains("3 means") && error.contains("1 channel"), "{error}");
}

#[test]
fn random_windows_and_flips_follow_from_seed_epoch_and_sample_in_training_alone() {
    let root = tempfile::tempdir().unwrap();
    for name in 0..6 {
        write_ramp(&root.path().join(format!("a/{name}.png")), 16, 12, 0);
    }
    let pipeline = gray([5, 5])
        .cropped(RandomResizedCrop::inception())
        .unwrap()
        .augmented(Augmentation { crop_padding: 1, ..Augmentation::crop_and_flip() });
    let data = open(&root, pipeline);
    let read = |samples: &[u32], pass| pixels(&data.read(samples, &pass).unwrap());
    let all = read(&[0, 1, 2, 3, 4, 5], Pass::training(1, 2));
    for sample in 0..6 {
        assert_eq!(read(&[sample], Pass::training(1, 2))[0], all[sample as usize]);
    }
    assert!(all[1..].iter().any(|image| *image != all[0]), "all files have the same content");
    assert_ne!(read(&[0, 1, 2, 3, 4, 5], Pass::training(1, 3)), all);
    assert_ne!(read(&[0, 1, 2, 3, 4, 5], Pass::training(0, 2)), all);
    let plain = read(&[0, 1, 2, 3, 4, 5], EVALUATION);
    assert!(plain.iter().all(|image| *image == plain[0]));
    // A sample of a part is augmented as in the whole.
    let part = Subset::from_samples(data.clone(), vec![4, 2]).unwrap();
    let of_part = pixels(&part.read(&[1, 0], &Pass::training(1, 2)).unwrap());
    assert_eq!(of_part, [all[2].clone(), all[4].clone()]);
}

#[test]
fn a_mirrored_window_is_mirrored() {
    let root = tempfile::tempdir().unwrap();
    write_ramp(&root.path().join("a/x.png"), 3, 3, 0);
    let whole = RandomResizedCrop { scale: [1.0, 1.0], ratio: [1.0, 1.0], horizontal_flip: true };
    let data = open(&root, gray([3, 3]).cropped(whole).unwrap());
    let mut mirrored = 0;
    for epoch in 0..40 {
        let image = pixels(&data.read(&[0], &Pass::training(0, epoch)).unwrap()).remove(0);
        if image == [2, 1, 0, 5, 4, 3, 8, 7, 6] {
            mirrored += 1;
        } else {
            assert_eq!(image, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }
    assert!((10..30).contains(&mirrored), "{mirrored}");
}

#[test]
fn a_corrupt_file_is_an_error_that_names_it() {
    let root = pets();
    let whole = fs::read(root.path().join("cat/a.png")).unwrap();
    let data = open(&root, gray([2, 2]));
    for content in [&b"no image"[..], b"", &whole[..whole.len() - 20]] {
        fs::write(root.path().join("cat/a.png"), content).unwrap();
        for pass in [EVALUATION, Pass::training(0, 0)] {
            let error = data.read(&[1, 0], &pass).unwrap_err();
            assert!(matches!(error, Error::Data { fault: DataFault::Corrupt, .. }), "{error}");
            assert!(error.to_string().contains("cat/a.png: not a readable image"), "{error}");
        }
    }
    fs::remove_file(root.path().join("cat/a.png")).unwrap();
    let error = data.clone().skipping_corrupt().read(&[0], &EVALUATION).unwrap_err().to_string();
    assert!(error.contains("cat/a.png: cannot read"), "a missing file is not skipped: {error}");
}

#[test]
fn an_image_cut_short_anywhere_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let noise = |x: u32, y: u32| Luma([(x * 7919 + y * 104_729 + x * y * 31) as u8]);
    fs::create_dir(root.path().join("a")).unwrap();
    for name in ["x.png", "x.jpg"] {
        let path = root.path().join("a").join(name);
        GrayImage::from_fn(64, 64, noise).save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let pipeline = gray([2, 2]);
        pipeline.tensor(&whole, 0, &EVALUATION).unwrap();
        // At the end of a PNG is a chunk without content.
        let last = if name == "x.png" { whole.len() - 12 } else { whole.len() };
        let accepted: Vec<usize> = (0..last)
            .rev()
            .step_by(7)
            .filter(|&len| pipeline.tensor(&whole[..len], 0, &EVALUATION).is_ok())
            .collect();
        assert!(accepted.is_empty(), "{name}: {} of {last}: {accepted:?}", accepted.len());
    }
}

#[test]
fn corrupt_files_are_replaced_in_training_left_out_in_an_evaluation_and_counted() {
    let root = pets();
    fs::write(root.path().join("cat/a.png"), "no image").unwrap();
    fs::write(root.path().join("dog/c.PNG"), "no image either").unwrap();
    let data = open(&root, gray([2, 2])).skipping_corrupt();
    let training = Pass::training(0, 0);
    let good = pixels(&data.read(&[1], &EVALUATION).unwrap()).remove(0);
    assert_eq!(data.corrupt(), 0);
    let batch = data.read(&[0, 1, 2], &training).unwrap();
    assert_eq!((labels(&batch), pixels(&batch)), (vec![0, 0, 0], vec![good.clone(); 3]));
    let batch = data.read(&[0, 1, 2, 0], &EVALUATION).unwrap();
    assert_eq!((labels(&batch), pixels(&batch)), (vec![0], vec![good]));
    assert_eq!(data.corrupt(), 2, "each file counts once");
    assert_eq!(data.read(&[2], &EVALUATION).unwrap().xs.dims(), [0, 1, 2, 2]);
    assert_eq!(data.clone().corrupt(), 2, "clones share the count");
    fs::write(root.path().join("cat/b.jpg"), "gone").unwrap();
    let error = data.read(&[1], &training).unwrap_err().to_string();
    assert!(error.contains("none of the 3 files is a readable image"), "{error}");
}

#[test]
fn folders_without_classes_or_images_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let error = |root: &Path| ImageFolder::open(root, gray([1, 1])).unwrap_err().to_string();
    assert!(error(&root.path().join("none")).contains("none: cannot list"));
    assert!(error(root.path()).contains("no folders in it"));
    write_ramp(&root.path().join("b/x.png"), 1, 1, 0);
    fs::create_dir(root.path().join("a")).unwrap();
    let message = error(root.path());
    assert!(message.contains("/a: no files with the ending png, jpg or jpeg"), "{message}");
}

#[test]
fn the_fingerprint_shows_names_sizes_and_what_becomes_of_them() {
    let (one, other) = (pets(), pets());
    let of = |root: &TempDir, pipeline| open(root, pipeline).fingerprint().unwrap();
    let base = of(&one, gray([2, 2]));
    assert_eq!(of(&other, gray([2, 2])), base, "the folder's own name does not count");
    assert_ne!(of(&one, gray([2, 3])), base);
    assert_ne!(of(&one, gray([2, 2]).augmented(Augmentation::crop_only())), base);
    assert_ne!(open(&one, gray([2, 2])).skipping_corrupt().fingerprint().unwrap(), base);
    fs::rename(other.path().join("cat/b.jpg"), other.path().join("dog/b.jpg")).unwrap();
    assert_ne!(of(&other, gray([2, 2])), base);
    // Another content of the same size.
    let path = one.path().join("cat/b.jpg");
    let mut content = fs::read(&path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&path, content).unwrap();
    assert_ne!(of(&one, gray([2, 2])), base);
}
