//! Shards: what is in them, how they are read, and shards that are cut short, damaged or odd.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use candelabrum_datasets::{
    DataFault, Dataset, Error, Pass, RecordDataset, RecordWriter, Result, ShardFormat,
    ShardOptions, Shards, shards_in,
};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const EVALUATION: Pass = Pass::evaluation();

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A tar file of these files, by name and content.
pub(crate) fn write_tar(path: &Path, files: &[(&str, &[u8])]) {
    let mut builder = Builder::new(File::create(path).unwrap());
    for (name, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.finish().unwrap();
}

/// A shard of records with these contents.
fn write_records(path: &Path, records: &[&[u8]]) {
    let mut writer = RecordWriter::create(path).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap();
}

/// Replaces a file. Some file systems wait for the disk when a file is overwritten.
fn replace(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

fn open<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Result<Shards> {
    Shards::open(paths, &ShardOptions::default())
}

fn fault(error: &Error) -> DataFault {
    let Error::Data { fault, .. } = error else { panic!("{error}") };
    *fault
}

/// The endings and the contents of the files of a sample.
type Files = Vec<(String, Vec<u8>)>;

/// Each sample as its key and its parts.
fn samples(shards: &Shards) -> Vec<(String, Files)> {
    let sample = |number| {
        let record = shards.record(number).unwrap();
        assert_eq!(record.sample(), number);
        let parts = record.parts().map(|(ending, content)| (ending.to_owned(), content.to_vec()));
        (record.key().to_owned(), parts.collect())
    };
    (0..shards.len()).map(sample).collect()
}

#[test]
fn files_with_the_same_stem_are_one_sample() {
    let dir = dir();
    let path = dir.path().join("a.tar");
    write_tar(
        &path,
        &[
            ("0001.jpg", b"first"),
            ("0001.cls", b"7"),
            ("0002.seg.PNG", b"second"),
            ("train/0002.jpg", b"another folder"),
            ("train/0002.cls", b""),
        ],
    );
    let shards = open([path]).unwrap();
    let part = |ending: &str, content: &[u8]| (ending.to_owned(), content.to_vec());
    assert_eq!(
        samples(&shards),
        [
            ("0001".to_owned(), vec![part("jpg", b"first"), part("cls", b"7")]),
            ("0002".to_owned(), vec![part("seg.png", b"second")]),
            ("train/0002".to_owned(), vec![part("jpg", b"another folder"), part("cls", b"")]),
        ]
    );
    let record = shards.record(0).unwrap();
    assert_eq!((record.data(), record.part("cls").unwrap()), (&b"first"[..], &b"7"[..]));
    let error = record.part("txt").unwrap_err().to_string();
    assert_eq!(error, "sample \"0001\" has no part \"txt\"; it has jpg, cls");
    assert!(matches!(shards.record(3), Err(Error::NoSuchSample { sample: 3, len: 3 })));
}

#[test]
fn odd_names_of_files_in_a_tar_are_read() {
    let dir = dir();
    let path = dir.path().join("odd.tar");
    let long = format!("{}/{}.jpg", "deep.folder/".repeat(30), "n".repeat(200));
    let long_cls = long.replace(".jpg", ".cls");
    let mut builder = Builder::new(File::create(&path).unwrap());
    let mut add = |name: &str, kind: EntryType, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append_data(&mut header, name, content).unwrap();
    };
    add("folder.x/", EntryType::Directory, b"");
    add("folder.x/.hidden.jpg", EntryType::Regular, b"hidden");
    add("folder.x/README", EntryType::Regular, b"none");
    add("__notes.txt__", EntryType::Regular, b"notes");
    add(&long, EntryType::Regular, b"long");
    add("._between.jpg", EntryType::Regular, b"hidden");
    add(&long_cls, EntryType::Regular, b"1");
    add("with space. and dot.jpg", EntryType::Regular, &[9; 700]);
    add("größe.jpg", EntryType::Regular, b"unicode");
    builder.append_pax_extensions([("path", &b"pax/\xff\xfe.name.jpg"[..])]).unwrap();
    let mut header = Header::new_ustar();
    header.set_path("short.jpg").unwrap();
    header.set_size(3);
    header.set_cksum();
    builder.append(&header, &b"pax"[..]).unwrap();
    builder.finish().unwrap();
    drop(builder);

    let found = samples(&open([path]).unwrap());
    let keys: Vec<&str> = found.iter().map(|(key, _)| &**key).collect();
    let long_key = long.strip_suffix(".jpg").unwrap();
    assert_eq!(keys, [long_key, "with space", "größe", "pax/\u{fffd}\u{fffd}"]);
    assert_eq!(found[0].1.len(), 2, "the hidden file between both is no sample");
    assert_eq!(found[1].1[0], (" and dot.jpg".to_owned(), vec![9; 700]));
    assert_eq!(found[3].1[0], ("name.jpg".to_owned(), b"pax".to_vec()));
}

/// A shard of each format with samples of different sizes, and the sizes.
fn both_formats(dir: &Path) -> Vec<PathBuf> {
    let contents: Vec<Vec<u8>> = (0..5_u8).map(|i| vec![i; 300 * usize::from(i)]).collect();
    let contents: Vec<&[u8]> = contents.iter().map(|content| &**content).collect();
    let paths = vec![dir.join("a.tar"), dir.join("b.tfrecord")];
    let names: Vec<String> = (0..5).map(|i| format!("{i}.bin")).collect();
    let files: Vec<_> = names.iter().map(|name| &**name).zip(contents.iter().copied()).collect();
    write_tar(&paths[0], &files);
    write_records(&paths[1], &contents);
    paths
}

#[test]
fn samples_are_numbered_through_all_shards_of_both_formats() {
    let dir = dir();
    let mut paths = both_formats(dir.path());
    let (empty, last) = (dir.path().join("empty.tfrecord"), dir.path().join("c.tfrecords"));
    write_records(&empty, &[]);
    write_records(&last, &[b"x"]);
    paths.insert(1, empty.clone());
    paths.extend([empty, last]);
    let shards = open(&paths).unwrap();
    assert_eq!((shards.len(), shards.lens()), (11, vec![5, 0, 5, 0, 1]));
    for sample in 0..10 {
        let number = (sample % 5) as u8;
        let record = shards.record(sample).unwrap();
        assert_eq!(record.data(), vec![number; 300 * usize::from(number)], "sample {sample}");
    }
    assert_eq!(shards.record(10).unwrap().key(), "c.tfrecords:0");
    assert_eq!(shards.record(7).unwrap().key(), "b.tfrecord:2");
    let found = shards_in(dir.path()).unwrap();
    let names = ["a.tar", "b.tfrecord", "c.tfrecords", "empty.tfrecord"];
    assert_eq!(found, names.map(|name| dir.path().join(name)));
    assert!(open::<&Path>([]).unwrap().is_empty());
}

#[test]
fn a_shard_cut_short_anywhere_is_an_error_with_its_name() {
    let dir = dir();
    for path in both_formats(dir.path()) {
        let whole = fs::read(&path).unwrap();
        let ends = open([&path]).unwrap();
        assert_eq!(ends.len(), 5);
        let is_tar = path.extension().is_some_and(|ending| ending == "tar");
        // Half of the end marker of a tar file is enough.
        let last = if is_tar { whole.len() - 512 - 1 } else { whole.len() - 1 };
        let mut complete = 0;
        for len in (1..=last).rev().step_by(7) {
            replace(&path, &whole[..len]);
            match open([&path]) {
                Ok(shards) => {
                    assert!(!is_tar, "{len} bytes");
                    complete += 1;
                    assert!(shards.len() < 5, "cut between two records");
                }
                Err(error) => {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    assert!(error.to_string().contains(name), "{len} bytes: {error}");
                    let fault = fault(&error);
                    assert!(matches!(fault, DataFault::CutShort | DataFault::Corrupt), "{error}");
                }
            }
        }
        assert!(complete <= 4);
        fs::write(&path, b"").unwrap();
        assert_eq!(open([&path]).is_err(), is_tar);
    }
}

#[test]
fn a_truncated_record_names_its_offset_and_the_size_that_the_file_needs() {
    let dir = dir();
    let path = dir.path().join("a.tfrecord");
    write_records(&path, &[&[1; 100], &[2; 50]]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..150]).unwrap();
    let error = open([&path]).unwrap_err().to_string();
    let expected =
        "a.tfrecord: the record at byte 116 ends at byte 182, the file at 150: it was cut short";
    assert!(error.ends_with(expected), "{error}");
    // A file that loses its end after it was opened.
    fs::write(&path, &whole).unwrap();
    let shards = open([&path]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(150).unwrap();
    shards.record(0).unwrap();
    let error = shards.record(1).unwrap_err().to_string();
    assert!(error.contains("a.tfrecord: cannot read"), "{error}");
}

#[test]
fn every_damaged_bit_of_a_file_of_records_is_found_and_located() {
    let dir = dir();
    let path = dir.path().join("a.tfrecord");
    let contents: [&[u8]; 4] = [b"first", b"", b"the third, which is longer", b"4"];
    write_records(&path, &contents);
    let whole = fs::read(&path).unwrap();
    let offsets: Vec<usize> = contents
        .iter()
        .scan(0, |end, content| Some(std::mem::replace(end, *end + 16 + content.len())))
        .collect();
    let (mut when_opened, mut when_read) = (0, 0);
    for bit in 0..whole.len() * 8 {
        let (place, mut damaged) = (bit / 8, whole.clone());
        damaged[place] ^= 1 << (bit % 8);
        replace(&path, &damaged);
        let hit = offsets.partition_point(|&offset| offset <= place) - 1;
        let error = match open([&path]) {
            Err(error) => {
                when_opened += 1;
                error
            }
            Ok(shards) => {
                for other in (0..contents.len()).filter(|&other| other != hit) {
                    assert_eq!(shards.record(other).unwrap().data(), contents[other], "bit {bit}");
                }
                when_read += 1;
                shards.record(hit).unwrap_err()
            }
        };
        let (text, offset) = (error.to_string(), offsets[hit]);
        let located = format!("a.tfrecord: at byte {offset}: wrong checksum");
        assert!(text.contains(&located), "bit {bit}: {text}");
    }
    println!("{when_opened} bits found when the file is opened, {when_read} when it is read");
    assert_eq!(when_opened, 4 * 12 * 8, "those of the lengths and of their checksums");
}

#[test]
fn every_damaged_bit_of_a_tar_header_is_an_error_or_has_no_effect() {
    let dir = dir();
    let path = dir.path().join("a.tar");
    write_tar(&path, &[("0.txt", b"zero"), ("1.txt", b"one"), ("2.txt", b"two")]);
    let whole = fs::read(&path).unwrap();
    let expected = samples(&open([&path]).unwrap());
    let mut harmless = 0;
    for bit in 0..512 * 8 {
        let mut damaged = whole.clone();
        damaged[1024 + bit / 8] ^= 1 << (bit % 8); // the header of the second file
        replace(&path, &damaged);
        match open([&path]) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("a.tar: at byte 1024: "), "bit {bit}: {text}");
            }
            Ok(shards) => {
                assert_eq!(samples(&shards), expected, "bit {bit}");
                harmless += 1;
            }
        }
    }
    println!("{} of 4096 bits found, {harmless} without effect", 4096 - harmless);
    assert!(harmless < 4096 / 100, "the bits after the digits of the checksum itself");
}

#[test]
fn files_that_are_no_shards_are_errors() {
    let dir = dir();
    let error = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        open([path]).unwrap_err().to_string()
    };
    assert!(error("a.zip", b"").contains("ends in .tar, .tfrecord, .tfrecords or .rec"));
    assert!(error("a.tar.gz", b"").contains("a compressed shard"));
    for name in ["gzipped.tar", "gzipped.tfrecord"] {
        assert!(error(name, &[0x1f, 0x8b, 8, 0, 0, 0]).contains("a compressed shard"));
    }
    assert!(error("text.tfrecord", &[b'x'; 100]).contains("has another format"));
    assert!(error("text.tar", &[b'x'; 600]).contains("no tar header"));
    let missing = open([dir.path().join("none.tar")]).unwrap_err().to_string();
    assert!(missing.contains("none.tar: cannot open"), "{missing}");
    fs::create_dir(dir.path().join("folder.tar")).unwrap();
    let folder = open([dir.path().join("folder.tar")]).unwrap_err().to_string();
    assert!(folder.contains("folder.tar: a directory"), "{folder}");
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(fault(&shards_in(empty.path()).unwrap_err()), DataFault::Missing);

    let named = dir.path().join("numbers");
    write_records(&named, &[b"1"]);
    let options = ShardOptions { format: Some(ShardFormat::TfRecord), ..ShardOptions::default() };
    assert_eq!(Shards::open([named], &options).unwrap().len(), 1, "any name with a format");
}

#[test]
fn an_index_file_is_used_while_it_fits_and_made_again_otherwise() {
    let dir = dir();
    let options = ShardOptions { keep_index: true, ..ShardOptions::default() };
    for path in both_formats(dir.path()) {
        let index = PathBuf::from(format!("{}.index", path.display()));
        let open = || Shards::open([&path], &options).unwrap();
        let expected = samples(&open());
        let written = fs::read(&index).unwrap();
        assert_eq!(samples(&open()), expected);

        // A damaged or foreign index file is replaced.
        for content in [&written[..written.len() - 1], b"", b"something else"] {
            fs::write(&index, content).unwrap();
            assert_eq!(samples(&open()), expected);
            assert_eq!(fs::read(&index).unwrap(), written);
        }
        // The index file is really used: damage in a header is not noticed when the shard is opened.
        let whole = fs::read(&path).unwrap();
        let changed = File::open(&path).unwrap().metadata().unwrap().modified().unwrap();
        let write = |content: &[u8], time| {
            fs::write(&path, content).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        let mut damaged = whole.clone();
        damaged[0] ^= 1;
        write(&damaged, changed);
        assert!(open().record(0).is_err());
        // After a change of the shard it is made again.
        write(&damaged, changed + Duration::from_nanos(1000));
        assert!(Shards::open([&path], &options).is_err());
        write(&whole, changed + Duration::from_secs(5));
        assert_eq!(samples(&open()), expected);
        assert_ne!(fs::read(&index).unwrap(), written);
    }
    // An index belongs to one format.
    let path = dir.path().join("a.tar");
    Shards::open([&path], &options).unwrap();
    let other = ShardOptions { format: Some(ShardFormat::TfRecord), ..options };
    assert!(Shards::open([&path], &other).is_err());
    // A folder in which nothing can be written is no error.
    let path = dir.path().join("c.tfrecord");
    write_records(&path, &[b"1"]);
    fs::create_dir(dir.path().join("c.tfrecord.index")).unwrap();
    assert_eq!(Shards::open([path], &options).unwrap().len(), 1);
}

#[test]
fn a_file_of_records_has_its_name_only_when_it_is_complete() {
    let dir = dir();
    let path = dir.path().join("a.tfrecord");
    let mut writer = RecordWriter::create(&path).unwrap();
    writer.write(b"1").unwrap();
    assert!(!path.exists());
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    let error = RecordWriter::create(dir.path().join("none/a.tfrecord")).unwrap_err().to_string();
    assert!(error.contains("cannot create"), "{error}");
}

#[test]
fn many_threads_read_many_shards_with_few_open_files() {
    let dir = dir();
    let paths: Vec<PathBuf> =
        (0..12).map(|i| dir.path().join(format!("{i:02}.tfrecord"))).collect();
    for (shard, path) in paths.iter().enumerate() {
        let records: Vec<Vec<u8>> = (0..20).map(|i| vec![shard as u8, i]).collect();
        write_records(path, &records.iter().map(|record| &**record).collect::<Vec<_>>());
    }
    let options = ShardOptions { open_files: 2, ..ShardOptions::default() };
    let shards = Shards::open(paths, &options).unwrap();
    let read = |start: usize| {
        for step in 0..240 {
            let sample = (start + step * 77) % 240;
            let record = shards.record(sample).unwrap();
            assert_eq!(record.data(), [(sample / 20) as u8, (sample % 20) as u8]);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || read(thread * 60));
        }
    });
}

#[test]
fn a_dataset_decodes_records_and_locates_what_it_cannot_decode() {
    let dir = dir();
    let path = dir.path().join("numbers.tar");
    write_tar(&path, &[("a.txt", b"17"), ("b.txt", b"300"), ("c.txt", b"many"), ("d.cls", b"1")]);
    let data = RecordDataset::new("numbers", open([path]).unwrap(), |record, pass| {
        let text = std::str::from_utf8(record.part("txt")?).map_err(Error::custom)?;
        let number: u32 = text.parse().map_err(Error::custom)?;
        let random = if pass.training { pass.rng(record.sample()).below(1 << 30) } else { 0 };
        Ok((number, random))
    });
    let (numbers, _) = data.read(&[1, 0], &EVALUATION).unwrap();
    assert_eq!(numbers.to_vec1::<u32>().unwrap(), [300, 17]);
    assert_eq!(data.read(&[], &EVALUATION).unwrap().0.dims(), [0]);
    let random = |samples: &[u32], epoch| {
        let (_, random) = data.read(samples, &Pass::training(0, epoch)).unwrap();
        random.to_vec1::<u32>().unwrap()
    };
    assert_eq!(random(&[0, 1], 0)[1], random(&[1], 0)[0]);
    assert_ne!(random(&[0], 0), random(&[0], 1));
    let error = data.read(&[0, 2], &EVALUATION).unwrap_err().to_string();
    let expected = "numbers.tar: sample \"c\" at byte 2048: invalid digit found in string";
    assert!(error.ends_with(expected), "{error}");
    let error = data.read(&[3], &EVALUATION).unwrap_err().to_string();
    assert!(error.ends_with("sample \"d\" has no part \"txt\"; it has cls"), "{error}");
    let fingerprint = data.fingerprint().unwrap();
    assert!(fingerprint.starts_with("4 samples in 1 shards "), "{fingerprint}");
    assert!(fingerprint.ends_with(", numbers"), "{fingerprint}");
}

#[test]
fn a_folder_gives_all_of_its_shards_or_says_which_it_cannot() {
    let names = |files: &[&str]| {
        let dir = dir();
        files.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        match shards_in(dir.path()) {
            Ok(paths) => Ok(paths.iter().map(name).collect::<Vec<_>>()),
            Err(error) => Err(error.to_string()),
        }
    };
    // What other programs put beside shards is none.
    let beside = ["0.tar", "0.tar.index", "0.tar.idx", "0.tar.sha256", "._0.tar", "x.json", "a.gz"];
    assert_eq!(names(&beside).unwrap(), ["0.tar"]);
    // The names that TensorFlow gives.
    let numbered = ["t.tfrecord-00001-of-00002", "t.tfrecord-00000-of-00002"];
    assert_eq!(names(&numbered).unwrap(), [numbered[1], numbered[0]]);
    for compressed in ["1.tar.gz", "1.TGZ", "1.tar.zst", "1.tfrecord.gz", "1.tfrecords.bz2"] {
        let error = names(&["0.tar", compressed]).unwrap_err();
        assert!(error.contains(compressed) && error.contains("unpack it"), "{error}");
    }
    for unfinished in ["1.tar.part", "1.tar.crdownload", "1.tfrecord.tmp", "0.tar.aria2"] {
        let error = names(&["0.tar", unfinished]).unwrap_err();
        assert!(error.contains(unfinished) && error.contains("unfinished"), "{error}");
    }
    let error = names(&["a.tfrecord-00000-of-00001", "t.tfrecord-00000-of-00003"]).unwrap_err();
    assert!(error.contains("t.tfrecord-00001-of-00003: missing"), "{error}");
}

#[test]
fn the_fingerprint_changes_with_a_content() {
    let dir = dir();
    for path in both_formats(dir.path()) {
        let of = || {
            let data = RecordDataset::new("x", open([&path]).unwrap(), |record, _| {
                Ok(record.data().len() as u32)
            });
            data.fingerprint().unwrap()
        };
        let (before, whole) = (of(), fs::read(&path).unwrap());
        assert_eq!(of(), before);
        let is_tar = path.extension().is_some_and(|ending| ending == "tar");
        if is_tar {
            let mut other = whole.clone();
            other[1024] ^= 1; // the content of the second file, whose header stays
            replace(&path, &other);
        } else {
            let contents: Vec<Vec<u8>> =
                (0..5_u8).map(|i| vec![i + 1; 300 * usize::from(i)]).collect();
            write_records(&path, &contents.iter().map(|content| &**content).collect::<Vec<_>>());
            assert_eq!(fs::metadata(&path).unwrap().len(), whole.len() as u64);
        }
        assert_ne!(of(), before);
        replace(&path, &whole);
        assert_eq!(of(), before);
    }
}
