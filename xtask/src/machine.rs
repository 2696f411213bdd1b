//! The optional parts of this machine (MPI, libclang, g++, PyTorch, MNIST, a GPU), and its free ports.

use std::env;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::checkout::repo_root;
use crate::shell::{find_program, succeeds};

/// The missing parts for the `mpi` feature, in words. Empty if it can be built and run.
pub(crate) fn lacks_for_mpi() -> Vec<&'static str> {
    let parts = [
        ("an MPI library", has_mpi_library()),
        ("mpiexec", find_program("mpiexec").is_some()),
        // The same search as in bindgen, which reads `mpi.h` with it.
        ("libclang", clang_sys::load().is_ok()),
    ];
    parts.iter().filter(|(_, is_here)| !is_here).map(|(part, _)| *part).collect()
}

/// The missing programs of the software GPU.
pub(crate) fn lacks_for_softgpu() -> Vec<&'static str> {
    let needed = candelabrum_softgpu::NEEDED_PROGRAMS.into_iter();
    needed.filter(|name| find_program(name).is_none()).collect()
}

/// Whether there is an MPI library, with the same search as in rsmpi's build script.
fn has_mpi_library() -> bool {
    let wrapper = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let packages = ["ompi", "mpich", "mpi"];
    succeeds(Command::new(wrapper).arg("-show"))
        || packages.iter().any(|name| succeeds(Command::new("pkg-config").args(["--exists", name])))
}

/// A Python that can `import torch`.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    python_with("torch")
}

/// A Python that has the module: the repository's `.venv`, `$CANDELABRUM_PYTHON`, `python3`.
pub(crate) fn python_with(module: &str) -> Option<PathBuf> {
    let own = repo_root().join(".venv/bin/python");
    let named = env::var_os("CANDELABRUM_PYTHON").map(PathBuf::from);
    let candidates = [own.is_file().then_some(own), named, Some(PathBuf::from("python3"))];
    candidates.into_iter().flatten().find(|python| imports(python, module))
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

/// What Open MPI's `mpiexec` needs to start any number of ranks, as any user. Variables, because the `mpiexec` of
/// another MPI would refuse the options.
pub(crate) const OPEN_MPI: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
];

/// A port on which no program listens now.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
