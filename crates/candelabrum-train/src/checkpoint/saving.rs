//! A checkpoint that is being written, on a thread of its own.
//!
//! Each rank writes the files of its own numbers, and then a list of them with their digests. Rank 0 waits for the
//! lists of all ranks, writes the manifest, and gives the directory its name. So ranks need no messages, for
//! which the training has the communicator.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use super::digest::FileDigest;
use super::directory::{Directory, sync};
use super::file_timeout::FileTimeout;
use super::manifest::{BestCheckpoint, Manifest};
use super::newest::record_newest;
use super::snapshot::Snapshot;

/// The time between two looks for the lists of other ranks.
const LOOK: Duration = Duration::from_millis(2);

/// A phase of the writing, in traces.
macro_rules! phase {
    ($name:literal) => {
        tracing::debug_span!(target: "candelabrum::checkpoint", $name)
    };
}

/// The files of one rank, by name, or why it has not written them.
type RankFiles = Result<BTreeMap<String, FileDigest>, String>;

/// What to write.
#[derive(Debug)]
pub(super) struct WriteJob {
    pub(super) directory: Directory,
    pub(super) rank: usize,
    pub(super) snapshot: Snapshot,
    /// Of rank 0.
    pub(super) manifest: Option<Manifest>,
    pub(super) step: u64,
    pub(super) keep: usize,
    /// The checkpoint from which the run began, if the directory has it.
    pub(super) source: Option<u64>,
    pub(super) best: BTreeMap<String, BestCheckpoint>,
    /// For how long ranks wait for each other.
    pub(super) file_timeout: FileTimeout,
}

/// The end of the work: the memory of the numbers, by what the checkpoint is the best, and what was wrong.
#[derive(Debug)]
pub(super) struct WriteOutcome {
    pub(super) snapshot: Snapshot,
    pub(super) best: BTreeMap<String, BestCheckpoint>,
    pub(super) result: io::Result<()>,
}

/// Writes `job` on another thread.
pub(super) fn start(job: WriteJob) -> io::Result<JoinHandle<WriteOutcome>> {
    let work = move || {
        let result = write(&job);
        if result.is_err() && job.rank == 0 {
            // What is left of it helps nobody, and may fill the disk.
            drop(fs::remove_dir_all(job.directory.partial(job.step)));
        }
        WriteOutcome { snapshot: job.snapshot, best: job.best, result }
    };
    Builder::new().name("candelabrum-checkpoint".to_owned()).spawn(work)
}

fn write(job: &WriteJob) -> io::Result<()> {
    let dir = job.directory.partial(job.step);
    let files = phase!("write").in_scope(|| {
        if job.rank == 0 {
            fs::create_dir_all(&dir)?;
        } else {
            wait_for_directory(&dir, &job.file_timeout)?;
        }
        write_files(job, &dir)
    });
    let listing = files.as_ref().map(BTreeMap::clone).map_err(ToString::to_string);
    leave_listing(&dir, job.rank, &listing)?;
    files?;
    let Some(manifest) = &job.manifest else { return Ok(()) };
    let mut manifest = manifest.clone();
    let gathering = phase!("gather").entered();
    for rank in 0..manifest.world_size {
        manifest.files.append(&mut take_listing(&dir, rank, &job.file_timeout)?);
    }
    add_files_of_servers(&dir, &mut manifest)?;
    manifest.write(&dir)?;
    drop(gathering);
    phase!("publish").in_scope(|| job.directory.publish(job.step))?;
    record_newest(job.step);
    let _span = phase!("prune").entered();
    for (name, best) in &job.best {
        job.directory.record_best(name, best)?;
    }
    job.directory.prune(job.keep, &manifest.best, job.source)
}

/// Writes the files of this rank.
fn write_files(job: &WriteJob, dir: &Path) -> io::Result<BTreeMap<String, FileDigest>> {
    let mut files = BTreeMap::new();
    for (name, numbers) in job.snapshot.files() {
        let name = format!("{name}.safetensors");
        let digest = numbers.write(&dir.join(&name)).map_err(|error| named(&name, &error))?;
        files.insert(name, digest);
    }
    let own = own_facts(job.rank);
    let bytes = serde_json::to_vec(&job.snapshot.own)?;
    write_synced(&dir.join(&own), &bytes).map_err(|error| named(&own, &error))?;
    files.insert(own, FileDigest::from_bytes(&bytes));
    Ok(files)
}

/// The file with what is a rank's own beside numbers.
pub(super) fn own_facts(rank: usize) -> String {
    format!("rank-{rank}.json")
}

fn listing_path(dir: &Path, rank: usize) -> PathBuf {
    dir.join(format!("note-{rank}.json"))
}

/// Says that all files of this rank are on the disk, or why they are not.
fn leave_listing(dir: &Path, rank: usize, listing: &RankFiles) -> io::Result<()> {
    let partial = dir.join(format!("note-{rank}.partial"));
    write_synced(&partial, &serde_json::to_vec(listing)?)?;
    fs::rename(partial, listing_path(dir, rank))
}

/// Waits until this rank sees the directory that rank 0 has made. It does not make the directory itself: rank 0 may
/// have failed and removed it.
fn wait_for_directory(dir: &Path, file_timeout: &FileTimeout) -> io::Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    let mut wait = file_timeout.begin(parent);
    while !lists(parent, dir)? {
        if wait.is_over() {
            let what = "rank 0 has not made this checkpoint's directory, or it is not seen here";
            return Err(io::Error::other(what));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Waits for the list of a rank.
fn take_listing(
    dir: &Path,
    rank: usize,
    file_timeout: &FileTimeout,
) -> io::Result<BTreeMap<String, FileDigest>> {
    let path = listing_path(dir, rank);
    let mut wait = file_timeout.begin(dir);
    while !lists(dir, &path)? {
        if wait.is_over() {
            return Err(io::Error::other(format!(
                "rank {rank} has not written its files after {} s: do all ranks see this directory?",
                wait.elapsed().as_secs()
            )));
        }
        thread::sleep(LOOK);
    }
    let text = fs::read(&path)?;
    fs::remove_file(&path)?;
    let listing: RankFiles = serde_json::from_slice(&text)?;
    listing.map_err(|what| io::Error::other(format!("rank {rank}: {what}")))
}

/// Whether a directory has a file. A network's file system remembers for up to a minute that a name did not exist, so
/// the list of the names is read: the name itself is not asked for before it exists.
fn lists(dir: &Path, path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        if entry?.path() == path {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Servers have written their files before this thread began, each where its host sees the directory.
fn add_files_of_servers(dir: &Path, manifest: &mut Manifest) -> io::Result<()> {
    let folders = manifest.parts.values().filter_map(|part| part.servers());
    let folders: Vec<String> = folders.map(str::to_owned).collect();
    for folder in folders {
        for entry in fs::read_dir(dir.join(&folder))? {
            let entry = entry?;
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            manifest.files.insert(name, FileDigest::from_file(&entry.path())?);
        }
        sync(&dir.join(&folder))?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}
