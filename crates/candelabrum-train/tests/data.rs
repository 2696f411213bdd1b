//! The data of a run on several pretended hosts, which `CANDELABRUM_HOST` names. Each rank is a
//! process of this test binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_datasets::{DataRequest, DatasetKind, Environment};
use candelabrum_dist::World;
use candelabrum_testkit::EndedProgram;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_train::load_data;

/// The variable with the dataset that the ranks load.
const KIND: &str = "DATA_KIND";
/// The variable with the limit of a download in seconds.
const DOWNLOAD: &str = "DATA_DOWNLOAD";

/// Loads the data. Prints one line with the result and the time.
#[test]
fn rank_main() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let download = std::env::var(DOWNLOAD).ok();
    let request = DataRequest {
        kind: std::env::var(KIND).unwrap().parse::<DatasetKind>().unwrap(),
        environment: Environment::of_process(),
        seed: 7,
        download: download.map(|seconds| Duration::from_secs(seconds.parse().unwrap())),
        quiet: true,
        ..DataRequest::default()
    };
    let start = Instant::now();
    match load_data(&request, &world) {
        Ok(data) => {
            let digest = data.train.sha256();
            println!("got {} {digest} note {:?}", data.name, data.note);
        }
        Err(error) => println!("error after {} ms: {error}", start.elapsed().as_millis()),
    }
}

/// Four ranks, two on each of two hosts: 0 and 2, 1 and 3.
fn two_hosts(root: &Path) -> RanksOf {
    let mut ranks =
        RanksOf::test("rank_main").env("CANDELABRUM_CACHE", root.join("cache").display());
    for rank in 0..4 {
        ranks = ranks.env_of(rank, "CANDELABRUM_HOST", rank % 2);
    }
    ranks
}

/// The lines that the ranks print.
fn lines(outputs: &[EndedProgram]) -> Vec<&str> {
    fn line(text: &str) -> Option<&str> {
        let mut lines = text.lines();
        lines.find_map(|line| line.find("got ").or(line.find("error after")).map(|at| &line[at..]))
    }
    outputs.iter().map(|output| line(&output.text).expect(&output.text)).collect()
}

/// Three digits for training and two for testing.
fn write_files(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for (part, count) in [("train", 3_u32), ("t10k", 2)] {
        let header =
            |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
        let images = [header(&[0x803, count, 28, 28]), vec![9; count as usize * 784]].concat();
        fs::write(dir.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels = [header(&[0x801, count]), vec![3; count as usize]].concat();
        fs::write(dir.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

#[test]
fn the_first_rank_of_each_host_finds_the_files_of_its_host() {
    let root = tempfile::tempdir().unwrap();
    let [zero, one] = ["zero", "one"].map(|host| root.path().join(host));
    write_files(&zero);
    write_files(&one);
    // The second ranks of the hosts, 2 and 3, have no `MNIST_DIR`.
    let ranks = two_hosts(root.path()).env(KIND, "mnist");
    let ranks = ranks.env_of(0, "MNIST_DIR", zero.display()).env_of(1, "MNIST_DIR", one.display());
    let outputs = ranks.run_all_good(4);
    let lines = lines(&outputs);
    assert!(lines[0].starts_with("got mnist ") && lines[0].ends_with("note None"), "{lines:?}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
}

#[test]
fn a_host_that_fails_is_the_cause_that_every_rank_hears() {
    let root = tempfile::tempdir().unwrap();
    let [good, bad] = ["good", "bad"].map(|host| root.path().join(host));
    write_files(&good);
    write_files(&bad);
    fs::remove_file(bad.join("t10k-labels-idx1-ubyte")).unwrap();
    for kind in ["auto", "mnist"] {
        let ranks = two_hosts(root.path()).env(KIND, kind);
        let ranks =
            ranks.env_of(0, "MNIST_DIR", good.display()).env_of(1, "MNIST_DIR", bad.display());
        let outputs = ranks.run_all_good(4);
        for (rank, line) in lines(&outputs).into_iter().enumerate() {
            assert!(line.contains("t10k-labels-idx1-ubyte not found"), "{line}");
            assert_eq!(line.contains("rank 1: "), rank != 1, "rank {rank}: {line}");
        }
    }
}

#[test]
fn where_one_host_has_no_files_all_ranks_take_the_same_digits_and_hear_why() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("zero");
    write_files(&dir);
    let ranks = two_hosts(root.path()).env(KIND, "auto").env_of(0, "MNIST_DIR", dir.display());
    let outputs = ranks.run_all_good(4);
    let lines = lines(&outputs);
    assert!(lines[0].starts_with("got synthetic digits"), "{lines:?}");
    for part in ["downloading was not allowed", "trains on synthetic digits", "host of rank 1"] {
        assert!(lines[0].contains(part), "{part} not in {}", lines[0]);
    }
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    // Only rank 0 prints the warning, once.
    let warnings =
        |output: &EndedProgram| output.text.matches("warning: MNIST was not found").count();
    assert_eq!(outputs.iter().map(warnings).collect::<Vec<_>>(), [1, 0, 0, 0]);
}

#[test]
fn a_download_that_goes_nowhere_ends_before_the_ranks_that_wait_give_up() {
    // A proxy that accepts every connection and never answers, instead of the network.
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    thread::spawn(move || {
        let silent = |mut stream: std::net::TcpStream| {
            thread::spawn(move || stream.read_to_end(&mut Vec::new()))
        };
        let _readers: Vec<_> = proxy.incoming().flatten().map(silent).collect();
    });
    let root = tempfile::tempdir().unwrap();
    let ranks = two_hosts(root.path())
        .env(KIND, "mnist")
        .env(DOWNLOAD, 3600)
        .env("CANDELABRUM_TIMEOUT", 6)
        .env("HTTPS_PROXY", &address);
    let outputs = ranks.run_all_good(4);
    for (rank, line) in lines(&outputs).into_iter().enumerate() {
        let milliseconds = line.split(' ').nth(2).and_then(|number| number.parse::<u64>().ok());
        assert!(milliseconds.is_some_and(|ms| ms < 5_500), "rank {rank}: {line}");
        for part in ["mnist not found", "could not be downloaded", "train-images-idx3-ubyte.gz"] {
            assert!(line.contains(part), "rank {rank}: {part} not in {line}");
        }
    }
}
