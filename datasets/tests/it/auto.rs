//! The choice of the data, and the messages about it.

use std::{cell::Cell, fs, io, path::Path, time::Duration};

use crate::mnist_files::{GOOD, good_files, write_good};
use candelabrum_datasets::{
    DataFault, DataRequest, DatasetKind, Environment, Error, ImageSet, Located, Source,
    download::{Digested, MNIST_MIRRORS, RemoteFile, RemoteFiles, Response},
    locate_with,
};

/// Locates without a network. Also returns the number of requests to the network.
fn locate(request: &DataRequest) -> (Result<Located, Error>, usize) {
    locate_by(request, |_| None)
}

/// Locates with a network that has some files, by name. Also returns the number of requests.
fn locate_by(
    request: &DataRequest,
    serve: impl Fn(&str) -> Option<Vec<u8>>,
) -> (Result<Located, Error>, usize) {
    let asked = Cell::new(0);
    let transport = |url: &str| -> io::Result<Response> {
        asked.set(asked.get() + 1);
        let name = url.rsplit('/').next().unwrap_or_default().trim_end_matches(".gz");
        let content = serve(name).ok_or_else(|| io::Error::other("no network"))?;
        Ok(Response { length: None, reader: Box::new(io::Cursor::new(content)) })
    };
    let files =
        GOOD.map(|(name, sha256)| RemoteFile { name, sha256, digested: Digested::Unpacked });
    let remote = RemoteFiles { files: &files, mirrors: &MNIST_MIRRORS, transport: &transport };
    (locate_with(request, &remote), asked.get())
}

/// A request that may download, with a cache under `root`.
fn request(kind: DatasetKind, root: &Path) -> DataRequest {
    let environment =
        Environment { candelabrum_cache: Some(root.join("cache")), ..Environment::default() };
    let download = Some(Duration::from_secs(1));
    DataRequest { kind, environment, seed: 4, download, ..DataRequest::default() }
}

#[test]
fn kinds_have_names_and_other_words_list_them() {
    for (name, kind) in [
        ("auto", DatasetKind::Auto),
        ("mnist", DatasetKind::Mnist),
        ("fashion-mnist", DatasetKind::FashionMnist),
        ("cifar10", DatasetKind::Cifar10),
        ("cifar100", DatasetKind::Cifar100),
        ("synthetic", DatasetKind::Synthetic),
    ] {
        assert_eq!(name.parse::<DatasetKind>().unwrap(), kind);
        assert_eq!(kind.to_string(), name);
    }
    let message = "MNIST".parse::<DatasetKind>().unwrap_err().to_string();
    let known = "auto, mnist, fashion-mnist, cifar10, cifar100 or synthetic";
    assert_eq!(message, format!("\"MNIST\" is no dataset: choose {known}"));
}

#[test]
fn the_named_directory_comes_before_the_environment_and_that_before_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let [named, env, cache] = ["named", "env", "cache/mnist"].map(|name| root.path().join(name));
    for dir in [&named, &env, &cache] {
        write_good(dir);
    }
    let mut request = request(DatasetKind::Auto, root.path());
    request.data_dir = Some(named.clone());
    request.environment.mnist_dir = Some(env.clone());
    let source = |request: &DataRequest| {
        let (located, asked) = locate(request);
        assert_eq!(asked, 0);
        let located = located.unwrap();
        assert_eq!(located.note, None);
        assert_eq!(located.source.open().unwrap().train.len(), 3);
        located.source
    };
    assert_eq!(source(&request), Source::Directory(ImageSet::Mnist, named));
    request.data_dir = None;
    assert_eq!(source(&request), Source::Directory(ImageSet::Mnist, env));
    request.environment.mnist_dir = None;
    assert_eq!(source(&request), Source::Directory(ImageSet::Mnist, cache));
}

#[test]
fn auto_falls_back_on_synthetic_digits_and_says_what_was_tried() {
    let root = tempfile::tempdir().unwrap();
    let mut request = request(DatasetKind::Auto, root.path());
    request.environment.mnist_dir = Some(root.path().join("empty"));
    let (located, asked) = locate(&request);
    let Located { source, note } = located.unwrap();
    assert_eq!(source, Source::synthetic(ImageSet::Mnist, 4));
    assert_eq!(asked, 2, "the first file at two mirrors, and no more");
    let note = note.unwrap();
    for part in ["synthetic", "$MNIST_DIR", "cache/mnist", "no network", "ossci", "cvdf"] {
        assert!(note.contains(part), "{part} not in {note}");
    }
    assert!(!note.contains('\n'));

    request.download = None;
    let (located, asked) = locate(&request);
    assert_eq!(asked, 0);
    assert!(located.unwrap().note.unwrap().contains("downloading was not allowed"));
}

#[test]
fn a_damaged_file_in_the_cache_is_named_and_fetched_again() {
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("cache/mnist");
    write_good(&cache);
    // One pixel has another value: the file can be read, but is not MNIST's.
    let images = cache.join("train-images-idx3-ubyte");
    let good = fs::read(&images).unwrap();
    let mut damaged = good.clone();
    damaged[1000] ^= 1;
    fs::write(&images, &damaged).unwrap();

    let request = request(DatasetKind::Auto, root.path());
    let (located, asked) = locate(&request);
    let note = located.unwrap().note.unwrap();
    assert_eq!(asked, 2);
    assert!(note.contains("train-images-idx3-ubyte: wrong checksum"), "{note}");
    let mnist = DataRequest { kind: DatasetKind::Mnist, download: None, ..request.clone() };
    let message = locate(&mnist).0.unwrap_err().to_string();
    assert!(message.contains("wrong checksum"), "{message}");
    assert_eq!(fs::read(&images).unwrap(), damaged);

    let serve = |name: &str| (name == "train-images-idx3-ubyte").then(|| good.clone());
    let (located, asked) = locate_by(&request, serve);
    assert_eq!((located.unwrap().source, asked), (Source::Directory(ImageSet::Mnist, cache), 1));
    assert_eq!(fs::read(&images).unwrap(), good);
    assert_eq!(locate(&request).1, 0);
}

#[test]
fn what_a_download_leaves_is_found_the_next_time() {
    let root = tempfile::tempdir().unwrap();
    let request = request(DatasetKind::Mnist, root.path());
    let serve = |name: &str| good_files().into_iter().find(|(n, _)| *n == name).map(|(_, c)| c);
    let (located, asked) = locate_by(&request, serve);
    assert_eq!(asked, 4);
    let (again, asked) = locate(&request);
    assert_eq!((again.unwrap(), asked), (located.unwrap(), 0));
}

#[test]
fn mnist_never_falls_back() {
    let root = tempfile::tempdir().unwrap();
    let (located, _) = locate(&request(DatasetKind::Mnist, root.path()));
    let message = located.unwrap_err().to_string();
    assert!(message.starts_with("mnist not found: $MNIST_DIR is not set; "), "{message}");
    assert!(message.contains("--data-dir"), "{message}");
}

#[test]
fn synthetic_looks_nowhere_and_has_no_note() {
    let root = tempfile::tempdir().unwrap();
    let mut request = request(DatasetKind::Synthetic, root.path());
    request.data_dir = Some("/no/such/directory".into());
    let (located, asked) = locate(&request);
    assert_eq!(
        located.unwrap(),
        Located { source: Source::synthetic(ImageSet::Mnist, 4), note: None }
    );
    assert_eq!(asked, 0);
}

#[test]
fn a_named_directory_without_the_files_is_an_error_for_auto_too() {
    let root = tempfile::tempdir().unwrap();
    for kind in [DatasetKind::Auto, DatasetKind::Mnist] {
        for dir in [root.path().to_owned(), root.path().join("missing")] {
            let request = DataRequest { data_dir: Some(dir), ..request(kind, root.path()) };
            let message = locate(&request).0.unwrap_err().to_string();
            for name in ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"] {
                assert!(message.contains(name), "{message}");
            }
            for name in ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"] {
                assert!(message.contains(name), "{message}");
            }
        }
    }
}

#[test]
fn a_corrupt_file_in_a_named_place_is_an_error_and_never_synthetic() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("digits");
    write_good(&dir);
    fs::write(dir.join("train-images-idx3-ubyte"), b"garbage").unwrap();
    let mut named = request(DatasetKind::Auto, root.path());
    named.data_dir = Some(dir.clone());
    let mut environment = request(DatasetKind::Auto, root.path());
    environment.environment.mnist_dir = Some(dir.clone());
    for request in [&named, &environment] {
        let message = locate(request).0.unwrap().open().unwrap_err().to_string();
        assert!(message.contains("train-images-idx3-ubyte: magic number"), "{message}");
    }
    fs::remove_file(dir.join("train-images-idx3-ubyte")).unwrap();
    let error = locate(&environment).0.unwrap_err();
    assert!(matches!(error, Error::Data { fault: DataFault::Missing, .. }), "{error}");
    let expected = "not an MNIST directory: train-images-idx3-ubyte not found";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_relative_directory_is_made_absolute_for_the_other_ranks() {
    let root = tempfile::tempdir_in(".").unwrap();
    write_good(root.path());
    let relative = Path::new(".").join(root.path().file_name().unwrap());
    let mut request = request(DatasetKind::Auto, root.path());
    request.data_dir = Some(relative);
    let text = locate(&request).0.unwrap().source.to_string();
    assert!(text.starts_with("mnist:/"), "{text}");
    assert_eq!(text.parse::<Source>().unwrap().open().unwrap().test.len(), 2);
}

#[test]
fn loaded_data_says_what_it_is() {
    let source = Source::Synthetic { set: ImageSet::Cifar100, seed: 0, train: 20, test: 10 };
    let located = Located { source, note: Some("why".into()) };
    let loaded = located.open().unwrap();
    assert_eq!((loaded.name, loaded.note.as_deref()), ("synthetic colored digits", Some("why")));
    assert_eq!((loaded.train.len(), loaded.test.len()), (20, 10));
}
