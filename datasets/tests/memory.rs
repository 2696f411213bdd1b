//! Data that are larger than the memory that a process may have are read batch by batch.
//!
//! The test starts its own program again under `ulimit -v`, which bounds the addresses that a process
//! may map: an allocation beyond it fails. Under the same limit, one process goes through shards that
//! are several times larger, and another one tries to read the shards whole.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside test functions")]
#![expect(clippy::print_stdout, reason = "the processes say what they have measured")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    time::Instant,
};

use candelabrum_datasets::{
    DistributedSampler, Loader, LoaderOptions, Record, RecordDataset, RecordWriter, Remainder,
    SamplerConfig, ShardOptions, Shards, Shuffle, shards_in,
};
use candle_core::{Device, Tensor};

/// The variable that says what the program shall do when the test starts it again.
const TASK: &str = "CANDELABRUM_TEST_MEMORY_TASK";
const FOLDER: &str = "CANDELABRUM_TEST_MEMORY_FOLDER";

const MIB: usize = 1 << 20;
/// What a process may map, of which program, libraries and the stacks of threads are a part.
const LIMIT: usize = 192 * MIB;
const SHARDS: usize = 12;
const RECORDS_IN_SHARD: usize = 256;
const RECORD: usize = MIB / 4;
const RECORDS: usize = SHARDS * RECORDS_IN_SHARD;

/// The content of a record. Each byte depends on the record.
fn content(number: usize) -> Vec<u8> {
    let mut content = vec![(number * 31 % 251) as u8; RECORD];
    content[..4].copy_from_slice(&(number as u32).to_le_bytes());
    content
}

fn write_shards(folder: &Path) {
    for shard in 0..SHARDS {
        let path = folder.join(format!("{shard:02}.tfrecord"));
        let mut writer = RecordWriter::create(path).unwrap();
        for number in shard * RECORDS_IN_SHARD..(shard + 1) * RECORDS_IN_SHARD {
            writer.write(&content(number)).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// What the system says of the memory of this process, in MiB: `VmSize` are the mapped addresses,
/// `VmPeak` the most so far, and `VmHWM` is the most memory in use so far.
fn amount(kind: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
    let kib = line.trim_start_matches(':').split_whitespace().next().unwrap();
    kib.parse::<usize>().unwrap() >> 10
}

/// Goes through an epoch of the shards on two threads.
fn stream(folder: &Path) {
    let shards = Shards::open(shards_in(folder).unwrap(), &ShardOptions::default()).unwrap();
    assert_eq!(shards.len(), RECORDS);
    let data = RecordDataset::new("bytes", shards, |record: &Record, _| {
        let (number, bytes) = record.data().split_first_chunk::<4>().unwrap();
        let bytes = Tensor::from_slice(bytes, bytes.len(), &Device::Cpu)?;
        Ok((u32::from_le_bytes(*number), bytes))
    });
    let sampler = DistributedSampler::new(SamplerConfig {
        len: RECORDS,
        global_rank: 0,
        world_size: 1,
        batch_size: 8,
        seed: 3,
        shuffle: true,
        remainder: Remainder::Keep,
    });
    let sampler = sampler.unwrap().with_shuffle(Shuffle::Window(512));
    let options = LoaderOptions { threads: 2, ..LoaderOptions::default() };
    let loader = Loader::new(Arc::new(data), sampler, options).unwrap();
    let start = Instant::now();
    let mut seen = vec![false; RECORDS];
    for batch in loader.epoch(0, 0).unwrap() {
        let (numbers, bytes) = batch.unwrap();
        let last = bytes.narrow(1, RECORD - 5, 1).unwrap().flatten_all().unwrap();
        let last = last.to_vec1::<u8>().unwrap();
        for (number, last) in numbers.to_vec1::<u32>().unwrap().into_iter().zip(last) {
            assert_eq!(usize::from(last), number as usize * 31 % 251);
            assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} again");
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    let seconds = start.elapsed().as_secs_f64();
    let (mapped, used) = (amount("VmPeak"), amount("VmHWM"));
    println!("an epoch in {seconds:.1} s, {mapped} MiB mapped and {used} MiB used at most");
}

/// Reads all shards and keeps them.
fn read_whole(folder: &Path) {
    let mut kept = Vec::new();
    for path in shards_in(folder).unwrap() {
        match fs::read(&path) {
            Ok(shard) => kept.push(shard),
            Err(error) => {
                println!("after {} of {SHARDS} shards: {error}", kept.len());
                return;
            }
        }
    }
    println!("all {} shards", kept.len());
}

/// Starts this test again with a task, under a limit of addresses.
fn start(task: &str, folder: &Path) -> Output {
    let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", LIMIT >> 10);
    let own = env::current_exe().expect("a test knows its own program");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(own);
    command.args(["data_larger_than_the_limit_of_memory_are_streamed", "--exact", "--nocapture"]);
    command.env(TASK, task).env(FOLDER, folder).output().unwrap()
}

fn printed(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    both.concat()
}

#[test]
fn data_larger_than_the_limit_of_memory_are_streamed() {
    if let (Ok(task), Some(folder)) = (env::var(TASK), env::var_os(FOLDER)) {
        match &*task {
            "stream" => stream(folder.as_ref()),
            _ => read_whole(folder.as_ref()),
        }
        return;
    }
    if !cfg!(target_os = "linux") {
        println!("left out: other systems than Linux do not enforce `ulimit -v`");
        return;
    }
    let mapped = amount("VmSize");
    if mapped * MIB > LIMIT * 3 / 4 {
        println!("left out: the libraries of this build alone map {mapped} MiB");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_shards(folder.path());
    let size = |path: &PathBuf| path.metadata().unwrap().len() as usize;
    let bytes: usize = shards_in(folder.path()).unwrap().iter().map(size).sum();
    println!(
        "{} MiB of shards, ulimit -v of {} MiB, of which the program maps {mapped} at first",
        bytes / MIB,
        LIMIT / MIB
    );
    assert!(bytes >= 4 * LIMIT);

    let whole = start("whole", folder.path());
    let text = printed(&whole);
    // On one core the line begins with the name of the test.
    let line = text.lines().find_map(|line| Some(&line[line.find("after ")?..])).expect(&text);
    println!("reading them whole ends {line}");
    assert!(line.contains("out of memory"), "{text}");

    let streamed = start("stream", folder.path());
    let text = printed(&streamed);
    assert!(streamed.status.success(), "{text}");
    println!("streamed: {}", text.lines().find(|line| line.contains("mapped")).expect(&text));
}
