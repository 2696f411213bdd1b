//! Compiled kernels on disk: a second process compiles none, and a cache that does not work does not
//! matter.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use candelabrum::nn::{Activation, ops};
use candelabrum::prelude::*;
use tempfile::TempDir;

use crate::device::gpu;
use crate::events;
use crate::linear::is_software_gpu;

/// Marks the processes of these tests.
const MARK: &str = "CANDELABRUM_TEST_KERNEL_CACHE";

/// The files of kernels that the process uses.
const SOURCES: usize = 2;

/// Uses kernels, and prints their results.
#[test]
fn main() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    events::print();
    let device = gpu().unwrap();
    let xs = Tensor::from_vec(vec![0.5_f32, -1.0, 2.0], (1, 3), &device).unwrap();
    let weight = Tensor::ones((2, 3), DType::F32, &device).unwrap();
    let ys = ops::linear(&xs, &weight, None, Some(Activation::Silu)).unwrap();
    let ys = ops::softmax(&ys).unwrap();
    eprintln!("results: {:?}", ys.to_vec2::<f32>().unwrap());
}

/// The process of [`main`] with this cache.
fn command(cache: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kernel_cache::main", "--nocapture"]);
    command.env(MARK, "1").env("SOFTGPU_TRACE", "1").env("CANDELABRUM_KERNEL_CACHE", cache);
    // The driver has a cache, too, in the home folder, which some of these tests change.
    let home = std::env::var_os("HOME").unwrap_or_default();
    command.env("CUDA_CACHE_PATH", Path::new(&home).join(".nv/ComputeCache"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the process, and returns how many sources it has compiled and how often it says something
/// about kept kernels.
fn compiled(child: Child) -> [usize; 2] {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("results: [[0.5, 0.5]]"), "{text}");
    let notes = text.lines().filter(|line| line.starts_with("DEBUG ") && line.contains("kernels"));
    [text.matches("softgpu: nvrtc compiles ").count(), notes.count()]
}

/// Compares with the number of sources that a process of [`main`] has compiled. Only the software GPU
/// tells it. Returns how often the process says something about kept kernels.
fn assert_compiles(mut command: Command, expected: usize) -> usize {
    let [compiled, notes] = compiled(command.spawn().unwrap());
    assert!(compiled == expected || !is_software_gpu(), "{compiled} compiled, not {expected}");
    notes
}

/// A new folder below which nothing exists, and the cache there.
fn new_cache() -> Option<(TempDir, PathBuf)> {
    gpu()?;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("some/kernels");
    Some((folder, cache))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_second_process_compiles_nothing() {
    let Some((_folder, cache)) = new_cache() else { return };
    assert_compiles(command(&cache), SOURCES);
    assert_eq!(files(&cache).len(), SOURCES);
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(assert_compiles(command(&cache), 0), 0);
}

#[test]
fn processes_may_start_at_once() {
    let Some((_folder, cache)) = new_cache() else { return };
    let children: Vec<_> = (0..3).map(|_| command(&cache).spawn().unwrap()).collect();
    for child in children {
        compiled(child);
    }
    assert_eq!(files(&cache).len(), SOURCES);
    assert_compiles(command(&cache), 0);
}

#[test]
fn a_broken_file_is_replaced() {
    let Some((_folder, cache)) = new_cache() else { return };
    assert_compiles(command(&cache), SOURCES);
    let file = files(&cache).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let other = fs::read(&files(&cache)[1]).unwrap();
    for broken in [&whole[..0], &whole[..10], &whole[..whole.len() - 1], &changed, &other] {
        fs::write(&file, broken).unwrap();
        assert_compiles(command(&cache), 1);
        assert_eq!(files(&cache).len(), SOURCES);
        assert_compiles(command(&cache), 0);
    }
}

/// Whether each file has a cubin, behind the format's name and a digest. PTX is a text.
fn are_cubins(cache: &Path) -> Vec<bool> {
    const BEFORE: usize = b"candelabrum kernels 2\n".len() + 32;
    let image = |file| fs::read(file).unwrap().split_off(BEFORE);
    files(cache).into_iter().map(|file| image(file).starts_with(b"\x7fELF")).collect()
}

#[test]
fn a_driver_gets_the_code_of_its_gpu() {
    let Some((_folder, cache)) = new_cache() else { return };
    compiled(command(&cache).spawn().unwrap());
    assert_eq!(are_cubins(&cache), [true; SOURCES]);
}

/// The software GPU has compute capability 9.0.
#[test]
fn a_gpu_that_is_newer_than_nvrtc_gets_ptx() {
    let Some((_folder, cache)) = new_cache().filter(|_| is_software_gpu()) else { return };
    let old = || {
        let mut command = command(&cache);
        command.env("SOFTGPU_NVRTC_NEWEST", "89");
        command
    };
    assert_compiles(old(), SOURCES);
    assert_eq!(are_cubins(&cache), [false; SOURCES]);
    assert_compiles(old(), 0);
    // A newer NVRTC does not use it.
    assert_compiles(command(&cache), SOURCES);
    assert_eq!(are_cubins(&cache).iter().filter(|&&is_cubin| is_cubin).count(), SOURCES);
    assert_compiles(old(), 0);
}

#[test]
fn kernels_can_be_compiled_before_a_program_runs() {
    let Some((_folder, cache)) = new_cache().filter(|_| is_software_gpu()) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap();
    let mut libraries = std::env::split_paths(&folders).map(|folder| folder.join("libnvrtc.so.13"));
    let mut compile = Command::new("python3");
    compile.arg(root.join("scripts/cuda/compile_kernels.py"));
    compile.arg(libraries.find(|library| library.exists()).unwrap()).arg(root);
    compile.arg("--cache").arg(&cache).args(["--only", "activations", "softmax"]);
    assert!(compile.status().unwrap().success());
    // In three types each.
    assert_eq!(files(&cache).len(), 3 * SOURCES);
    assert_eq!(assert_compiles(command(&cache), 0), 0);
}

/// The software GPU's image names a file. Here that file is deleted.
#[test]
fn an_image_that_does_not_load_is_replaced() {
    let Some((folder, cache)) = new_cache().filter(|_| is_software_gpu()) else { return };
    let objects = folder.path().join("objects");
    let command = || {
        let mut command = command(&cache);
        command.env("SOFTGPU_CACHE", &objects);
        command
    };
    assert_compiles(command(), SOURCES);
    fs::remove_dir_all(&objects).unwrap();
    assert_compiles(command(), SOURCES);
    assert_compiles(command(), 0);
}

#[test]
fn without_a_folder_kernels_are_compiled() {
    let Some((folder, _)) = new_cache() else { return };
    // The parent is a file.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(assert_compiles(command(file.join("kernels")), SOURCES), 1);
    // Empty: no cache, in no folder.
    let mut without = command("");
    without.env("HOME", folder.path()).env("XDG_CACHE_HOME", folder.path());
    assert_compiles(without, SOURCES);
    assert_eq!(files(folder.path()), [file]);
}

#[test]
fn without_a_folder_of_its_own_the_cache_is_beside_others() {
    const OTHERS: [&str; 3] = ["CANDELABRUM_CACHE", "XDG_CACHE_HOME", "HOME"];
    let Some((folder, _)) = new_cache() else { return };
    let kernels = ["kernels", "candelabrum/kernels", ".cache/candelabrum/kernels"];
    for (i, (name, kernels)) in OTHERS.iter().zip(kernels).enumerate() {
        let cache = folder.path().join(name);
        let mut command = command("");
        command.env_remove("CANDELABRUM_KERNEL_CACHE");
        OTHERS[..i].iter().for_each(|earlier| {
            command.env_remove(earlier);
        });
        OTHERS[i..].iter().for_each(|later| {
            command.env(later, folder.path().join(later));
        });
        assert_compiles(command, SOURCES);
        assert_eq!(files(&cache.join(kernels)).len(), SOURCES, "{name}");
        assert_eq!(files(folder.path()).len(), i + 1, "{name}");
    }
}

/// Files of another user would be run as kernels.
#[test]
fn a_folder_of_others_is_not_used() {
    let Some((_folder, cache)) = new_cache() else { return };
    assert_compiles(command(&cache), SOURCES);
    for mode in [0o720, 0o702, 0o777] {
        fs::set_permissions(&cache, Permissions::from_mode(mode)).unwrap();
        assert_eq!(assert_compiles(command(&cache), SOURCES), 1);
    }
    fs::set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
    assert_compiles(command(&cache), 0);
    // Only root may give a folder away.
    if chown(&cache, Some(1), None).is_ok() {
        assert_compiles(command(&cache), SOURCES);
    }
}

/// Nobody can write a file in this folder, not even root.
#[test]
fn a_folder_without_room_does_not_matter() {
    if gpu().is_some() {
        assert_eq!(assert_compiles(command("/proc"), SOURCES), 1);
    }
}
