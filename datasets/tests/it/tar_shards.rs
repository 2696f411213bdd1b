//! Tar files as shards: no sample is lost without a word.
//!
//! Each case is a way in which a reader could see fewer samples than were packed: a second archive, an
//! end that never arrived, links, files in another order, names without an ending.

use std::{fs, path::PathBuf, process::Command};

use candelabrum_datasets::{ShardOptions, Shards};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// One member of an archive: its header and its content, in whole blocks.
fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::new(kind));
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(content.len() as u64);
    if matches!(kind, b'1' | b'2') {
        header.set_link_name("elsewhere").unwrap();
    }
    if kind == b'S' {
        // One piece of data at the end of a file that is longer than the archive.
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(1 << 20);
        gnu.sparse[0].set_offset(1 << 20);
        gnu.sparse[0].set_length(0);
    }
    header.set_cksum();
    let mut bytes = [header.as_bytes(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str) -> Vec<u8> {
    member(name, b'0', b"content")
}

/// Records of a PAX header, each with its length.
fn pax(kind: u8, records: &[&str]) -> Vec<u8> {
    let record = |text: &&str| {
        let rest = text.len() + 2; // the blank and the line end
        let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
        format!("{len} {text}\n")
    };
    member("PaxHeaders/x", kind, records.iter().map(record).collect::<String>().as_bytes())
}

/// An archive of these members with so many bytes of zeros behind them.
fn archive(members: &[Vec<u8>], zeros: usize) -> Vec<u8> {
    [members.concat(), vec![0; zeros]].concat()
}

struct OpenedShard {
    _dir: TempDir,
    path: PathBuf,
    shards: candelabrum_datasets::Result<Shards>,
}

fn open_with(content: &[u8], options: &ShardOptions) -> OpenedShard {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    fs::write(&path, content).unwrap();
    let shards = Shards::open([&path], options);
    OpenedShard { _dir: dir, path, shards }
}

fn open(content: &[u8]) -> OpenedShard {
    open_with(content, &ShardOptions::default())
}

/// The keys of the samples with the endings of their files.
fn keys(content: &[u8]) -> Vec<String> {
    let opened = open(content);
    let shards = opened.shards.unwrap();
    let sample = |number| {
        let record = shards.record(number).unwrap();
        let endings: Vec<&str> = record.parts().map(|(ending, _)| ending).collect();
        format!("{} {}", record.key(), endings.join(" "))
    };
    (0..shards.len()).map(sample).collect()
}

/// Checks the error of a file: how its message begins after the name of the file, and what is in it.
fn refused(content: &[u8], start: &str, parts: &[&str]) {
    let OpenedShard { path, shards, .. } = open(content);
    let text = shards.unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}: {start}", path.display())), "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn zeros_up_to_a_record_of_twenty_blocks_end_an_archive() {
    let members = [file("0.jpg"), file("0.cls"), file("1.jpg")];
    for zeros in [1024, 1536, 4096, 10_240, 10_752] {
        assert_eq!(keys(&archive(&members, zeros)), ["0 jpg cls", "1 jpg"], "{zeros}");
    }
    // What tar and Python write of nothing.
    assert!(keys(&[0; 10_240]).is_empty());
    for zeros in [0, 512, 1023] {
        refused(&archive(&members, zeros), "no 1024 bytes of zeros at byte 3072", &[]);
    }
}

#[test]
fn a_long_tail_of_zeros_is_an_unfinished_file() {
    let members: Vec<Vec<u8>> =
        (0..40).map(|i| member(&format!("{i:03}.bin"), b'0', &[7; 1024])).collect();
    let mut whole = archive(&members, 1024);
    whole.resize(whole.len().next_multiple_of(10_240), 0);
    assert_eq!(keys(&whole).len(), 40);
    for samples in [0, 1, 10, 30] {
        let mut hole = whole.clone();
        hole[samples * 1536..].fill(0);
        let (start, zeros) = (samples * 1536, hole.len() - samples * 1536);
        let expected = format!("{zeros} bytes of zeros from byte {start} to the end");
        refused(&hole, &expected, &["fetch it again", "blocking_factor"]);
        // Who packs with a larger record says so.
        let options = ShardOptions { blocking_factor: 140, ..ShardOptions::default() };
        assert_eq!(open_with(&hole, &options).shards.unwrap().len(), samples);
    }
}

#[test]
fn a_second_archive_behind_the_end_is_an_error_with_a_remedy() {
    for zeros in [1024, 10_240, 10_752] {
        let [first, second] = ["0.jpg", "1.jpg"].map(|name| archive(&[file(name)], zeros));
        let expected = format!("another tar file begins at byte {}", 1024 + zeros);
        refused(&[first, second].concat(), &expected, &["tar --concatenate"]);
    }
    // A lone block of zeros in the middle.
    let both = [archive(&[file("0.jpg")], 512), archive(&[file("1.jpg")], 1024)].concat();
    refused(&both, "another tar file begins at byte 1536", &[]);
}

#[test]
fn bytes_behind_the_end_are_an_error() {
    for (zeros, garbage) in [(1024, &b"x"[..]), (1024, &[1; 700]), (5000, b"\n"), (10_751, b"x")] {
        let content = [archive(&[file("0.jpg")], zeros), garbage.to_vec()].concat();
        let expected = format!("byte {} is not zero, behind the end of the archive", 1024 + zeros);
        refused(&content, &expected, &[]);
    }
}

#[test]
fn links_and_other_members_that_are_no_files_are_errors() {
    for (kind, what, remedy) in [
        (b'1', "a hard link", "--hard-dereference"),
        (b'2', "a symbolic link", "--dereference"),
        (b'3', "a device", ""),
        (b'4', "a device", ""),
        (b'6', "a pipe", ""),
        (b'S', "sparse", ""),
        (b'M', "another volume", ""),
        (b'Q', "unknown type", ""),
    ] {
        let members = [file("0.jpg"), file("0.cls"), member("d/1.jpg", kind, b""), file("d/1.cls")];
        refused(&archive(&members, 1024), "at byte 2048: ", &[what, remedy]);
    }
    // Those that could be no part of a sample are counted.
    let members = [member("latest", b'2', b""), file("0.jpg")];
    assert_eq!(open(&archive(&members, 1024)).shards.unwrap().left_out(), 1);
}

#[test]
fn sparse_files_in_pax_headers_are_errors() {
    for records in [
        &["GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=0.bin"][..],
        &["GNU.sparse.size=7"],
    ] {
        let members = [pax(b'x', records), file("GNUSparseFile.9/0.bin")];
        refused(&archive(&members, 1024), "at byte 0: ", &["sparse"]);
    }
}

#[test]
fn pax_headers_that_cannot_be_understood_are_errors() {
    let broken = member("PaxHeaders/x", b'x', b"99 path=0.jpg\n");
    for (header, name, part) in [
        (broken, "short", "PAX header"),
        (pax(b'x', &["size=many"]), "0.jpg", "PAX header"),
        // A header for all members that would rename them or change their sizes.
        (pax(b'g', &["path=0.jpg"]), "0.jpg", "all members"),
    ] {
        refused(&archive(&[header, file(name)], 1024), "at byte 0: ", &[part]);
    }
    // What git writes.
    let comment = pax(b'g', &["comment=0123456789abcdef"]);
    assert_eq!(keys(&archive(&[comment, file("0.jpg")], 1024)), ["0 jpg"]);
}

#[test]
fn contiguous_files_are_files() {
    let members = [member("0.jpg", b'7', b"content"), member("0.cls", 0, b"1")];
    assert_eq!(keys(&archive(&members, 1024)), ["0 jpg cls"]);
}

#[test]
fn a_name_that_claims_to_be_long_costs_no_memory() {
    let mut header = member("././@LongLink", b'L', b"");
    let mut long = Header::from_byte_slice(&header).clone();
    long.set_size(8 << 30);
    long.set_cksum();
    header.copy_from_slice(long.as_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    fs::write(&path, &header).unwrap();
    // A file with a hole: it has this size and takes no room.
    fs::File::options().write(true).open(&path).unwrap().set_len(9 << 30).unwrap();
    let Err(error) = Shards::open([&path], &ShardOptions::default()) else { panic!("no error") };
    assert!(error.to_string().contains("a.tar: at byte 0: "), "{error}");
}

#[test]
fn a_key_that_comes_back_is_an_error_with_a_remedy() {
    let members = ["0.jpg", "1.jpg", "0.cls", "1.cls"].map(file);
    let expected = "at byte 2048: the files of sample \"0\" are not adjacent";
    refused(&archive(&members, 1024), expected, &["tar --sort=name"]);
    // The same names in several folders are several samples.
    let members = ["a/0.jpg", "b/0.jpg", "0.jpg", "./1.jpg"].map(file);
    assert_eq!(keys(&archive(&members, 1024)).len(), 4);
    // With and without `./` a name is the same one.
    let members = ["0.jpg", "1.jpg", "./0.cls"].map(file);
    refused(&archive(&members, 1024), "", &["\"0\" are not adjacent"]);
}

#[test]
fn a_part_that_comes_twice_is_an_error() {
    for names in [["0.jpg", "0.jpg"], ["0.jpg", "0.JPG"], ["0.jpg", "./0.jpg"]] {
        let expected = "at byte 1024: sample \"0\" has several files that end in \"jpg\"";
        refused(&archive(&names.map(file), 1024), expected, &[]);
    }
}

#[test]
fn a_file_without_an_ending_is_an_error() {
    for names in [&["000", "001"][..], &["0.jpg", "d/1"], &["0.jpg", ""]] {
        let members: Vec<Vec<u8>> = names.iter().map(|name| file(name)).collect();
        let last = if names[0] == "000" { names[0] } else { names[1] };
        refused(&archive(&members, 1024), "", &[&format!("{last:?} has no ending")]);
    }
}

#[test]
fn files_that_are_meant_for_people_or_systems_are_counted() {
    let ignored = [
        "README",
        "d/LICENSE",
        "._0.jpg",
        "d/.hidden",
        "__index__",
        "d/__notes.txt__",
        "Thumbs.db",
    ];
    let mut members: Vec<Vec<u8>> = ignored.iter().map(|name| file(name)).collect();
    members.push(member("d.x/", b'5', b""));
    members.push(member("volume.1", b'V', b""));
    members.extend([file("0.jpg"), file("._0.cls"), file("0.cls")]);
    let content = archive(&members, 1024);
    assert_eq!(keys(&content), ["0 jpg cls"]);
    let opened = open(&content);
    let shards = opened.shards.unwrap();
    assert_eq!(shards.left_out(), ignored.len() + 1);
    // An index file knows the count, too.
    let options = ShardOptions { keep_index: true, ..ShardOptions::default() };
    for _ in 0..2 {
        let shards = Shards::open([&opened.path], &options).unwrap();
        assert_eq!((shards.len(), shards.left_out()), (1, ignored.len() + 1));
    }
}

#[test]
fn a_shard_that_gnu_tar_has_packed_is_read_or_refused_for_its_links() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    for name in ["000.jpg", "000.cls", "001.cls"] {
        fs::write(files.join(name), name).unwrap();
    }
    fs::hard_link(files.join("000.jpg"), files.join("001.jpg")).unwrap();
    let path = dir.path().join("a.tar");
    let pack = |options: &[&str]| {
        let mut tar = Command::new("tar");
        tar.args(options).arg("--sort=name").arg("-cf").arg(&path).arg("-C").arg(&files).arg(".");
        tar.output().is_ok_and(|output| output.status.success())
    };
    for format in ["--format=gnu", "--format=pax", "--format=ustar"] {
        for blocks in ["-b1", "-b2", "-b8", "-b20"] {
            if !pack(&[format, blocks, "--hard-dereference"]) {
                println!("left out: this system has no GNU tar");
                return;
            }
            let shards = Shards::open([&path], &ShardOptions::default()).unwrap();
            assert_eq!(shards.record(1).unwrap().part("jpg").unwrap(), b"000.jpg");
            assert!(pack(&[format, blocks]));
            let error = Shards::open([&path], &ShardOptions::default()).unwrap_err().to_string();
            assert!(error.contains("is a hard link"), "{error}");
        }
    }
}
