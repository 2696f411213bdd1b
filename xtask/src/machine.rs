//! The optional parts of this machine: MPI, libclang, g++, PyTorch, MNIST, a GPU.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkout::repo_root;
use crate::shell::{find_program, output, succeeds};

/// The missing parts for the `mpi` feature, in words. Empty if it can be built and run.
pub(crate) fn lacks_for_mpi() -> Vec<&'static str> {
    let mut lacks = Vec::new();
    if !has_mpi_library() {
        lacks.push("an MPI library");
    }
    if find_program("mpiexec").is_none() {
        lacks.push("mpiexec");
    }
    if libclang().is_none() {
        lacks.push("libclang");
    }
    lacks
}

/// The missing programs of the software GPU.
pub(crate) fn lacks_for_softgpu() -> Vec<&'static str> {
    let needed = candelabrum_softgpu::NEEDED_PROGRAMS.into_iter();
    needed.filter(|name| find_program(name).is_none()).collect()
}

/// Whether there is an MPI library, with the same search as in rsmpi's build script.
pub(crate) fn has_mpi_library() -> bool {
    let wrapper = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let packages = ["ompi", "mpich", "mpi"];
    succeeds(Command::new(wrapper).arg("-show"))
        || packages.iter().any(|name| succeeds(Command::new("pkg-config").args(["--exists", name])))
}

/// The folder with libclang, which bindgen needs to read `mpi.h`.
pub(crate) fn libclang() -> Option<PathBuf> {
    let named = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let told = output(Command::new("llvm-config").arg("--libdir")).map(PathBuf::from);
    let usual = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/opt/llvm/lib"];
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let versioned = fs::read_dir("/usr/lib").into_iter().flatten().flatten().filter_map(|entry| {
        let is_llvm = entry.file_name().to_string_lossy().starts_with("llvm");
        is_llvm.then(|| entry.path().join("lib"))
    });
    let folders = named.into_iter().chain(told).chain(usual.map(PathBuf::from));
    folders.chain([PathBuf::from(multiarch)]).chain(versioned).find(|place| holds_libclang(place))
}

/// LIBCLANG_PATH may be the path of the library or of its folder.
fn holds_libclang(place: &Path) -> bool {
    let is_libclang = |name: &str| {
        let plain = name.starts_with("libclang.") || name.starts_with("libclang-");
        plain
            && !name.starts_with("libclang-cpp")
            && (name.contains(".so") || name.ends_with("dylib"))
    };
    if place.is_file() {
        return place.file_name().is_some_and(|name| is_libclang(&name.to_string_lossy()));
    }
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| is_libclang(&entry.file_name().to_string_lossy()))
}

/// A Python that can `import torch`: the repository's `.venv`, `$CANDELABRUM_PYTHON`, `python3`.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    let own = repo_root().join(".venv/bin/python");
    let named = env::var_os("CANDELABRUM_PYTHON").map(PathBuf::from);
    let candidates = [own.is_file().then_some(own), named, Some(PathBuf::from("python3"))];
    candidates.into_iter().flatten().find(|python| imports(python, "torch"))
}

/// Whether this Python has the module. The check does not import it, which would take time.
pub(crate) fn imports(python: &Path, module: &str) -> bool {
    let question = format!("import importlib.util as u; exit(u.find_spec('{module}') is None)");
    succeeds(Command::new(python).args(["-c", &question]))
}

/// The folder with the four MNIST files: `$MNIST_DIR`, or a folder beside the repository.
pub(crate) fn mnist() -> Option<PathBuf> {
    let named = env::var_os("MNIST_DIR").map(PathBuf::from);
    let beside = repo_root().join("../shared/data/mnist");
    named.into_iter().chain([beside]).find(|folder| {
        let images = folder.join("train-images-idx3-ubyte");
        images.is_file() || images.with_extension("gz").is_file()
    })
}

/// Whether there is a CUDA device.
pub(crate) fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists() || succeeds(Command::new("nvidia-smi").arg("-L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_libclang_holds_none() {
        assert!(!holds_libclang(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(!holds_libclang(Path::new("no/such/folder")));
    }
}
