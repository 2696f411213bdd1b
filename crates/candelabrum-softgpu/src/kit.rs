//! The kit: a folder that looks like an installation of CUDA, and the variables that lead to it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::digest::Digest;
use crate::steps;
use crate::{Error, Result};

/// The stand-ins, compiled.
#[derive(Debug)]
pub struct SoftGpuKit {
    folder: PathBuf,
    /// The folder with nvcc. Its name has a digest, see [`SoftGpuKit::nvcc_digest`].
    bin: PathBuf,
}

impl SoftGpuKit {
    /// Builds what is missing or out of date in `<target>/softgpu`. `root` is the root of the
    /// repository. Processes that build the same kit at the same time wait for each other.
    ///
    /// # Errors
    /// A program of [`NEEDED_PROGRAMS`](crate::NEEDED_PROGRAMS) is missing, or a step failed.
    pub fn build(root: &Path, target: &Path) -> Result<SoftGpuKit> {
        let folder = target.join("softgpu");
        steps::make_folder(&folder)?;
        let folder = fs::canonicalize(&folder).map_err(Error::file("find", &folder))?;
        let lock = folder.join("lock");
        let file = File::create(&lock).map_err(Error::file("write", &lock))?;
        file.lock().map_err(Error::file("lock", &lock))?;

        let package = root.join("crates/candelabrum-softgpu");
        let package = fs::canonicalize(&package).map_err(Error::file("find", &package))?;
        let objects = steps::objects(&package, &folder.join("objects"))?;
        steps::link(&objects, &folder.join("run"))?;
        steps::archives(root, &folder.join("lib64/stubs"))?;
        for (name, target) in [
            ("bin", package.join("bin")),
            ("include", package.join("include")),
            ("lib", PathBuf::from("lib64")),
        ] {
            steps::point(&folder.join(name), &target)?;
        }
        let bin = folder.join(format!("bin-{}", SoftGpuKit::nvcc_digest(&package, &folder)?));
        let kit = SoftGpuKit { folder, bin };
        if !kit.bin.exists() {
            kit.forget_kernels()?;
            steps::remove_old(&kit.folder, |name| name.starts_with("bin-"))?;
        }
        steps::point(&kit.bin, Path::new("bin"))?;
        Ok(kit)
    }

    /// Removes what candle-kernels' build script knows of the kernels that it has compiled. It runs again when
    /// the path of nvcc changes, and would then compile only kernels whose own text has changed.
    fn forget_kernels(&self) -> Result<()> {
        for profile in entries(&self.build_folder()) {
            for package in entries(&profile.join("build")) {
                let cache = package.join("out/.cudaforge_cache.json");
                if cache.exists() {
                    fs::remove_file(&cache).map_err(Error::file("remove", &cache))?;
                }
            }
        }
        Ok(())
    }

    /// Depends on nvcc, on its headers and on the folder of compiled kernels.
    ///
    /// cargo does not notice when one of these changes or is deleted, but it does notice when the
    /// path of nvcc changes. So the digest is part of that path.
    fn nvcc_digest(package: &Path, folder: &Path) -> Result<String> {
        let kernels = folder.join("kernels");
        steps::make_folder(&kernels)?;
        // Compiled programs name files of this folder, so another folder means another build.
        let made = kernels.join("made");
        if !made.exists() {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let text = format!("{}\n", now.map_or(0, |since| since.as_nanos()));
            fs::write(&made, text).map_err(Error::file("write", &made))?;
        }
        let mut digest = Digest::default();
        digest.file(&package.join("bin/nvcc"))?;
        digest.folder(&package.join("include"))?;
        digest.file(&made)?;
        Ok(digest.finish())
    }

    /// The variables with which programs are built and run on the software GPU. `PATH` and
    /// `LD_LIBRARY_PATH` begin with the kit's folders and end with their present values.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let folder = || self.folder.clone().into_os_string();
        vec![
            ("CUDA_HOME", folder()),
            ("CUDA_PATH", folder()),
            ("CUDA_TOOLKIT_ROOT_DIR", folder()),
            ("NVCC", self.bin.join("nvcc").into_os_string()),
            ("PATH", before("PATH", &self.bin)),
            ("CUDA_COMPUTE_CAP", "90".into()),
            ("CUDARC_CUDA_VERSION", "13000".into()),
            // What is compiled here names a file of the folder below, which may be deleted.
            ("CANDELABRUM_KERNEL_CACHE", OsString::new()),
            ("SOFTGPU_HOME", folder()),
            ("SOFTGPU_CACHE", self.folder.join("kernels").into_os_string()),
            ("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &self.folder.join("run"))),
            ("CARGO_TARGET_DIR", self.build_folder().into_os_string()),
        ]
    }

    /// Where cargo builds programs with this kit. Builds with the stand-in nvcc and with the real
    /// one must not be mixed.
    pub fn build_folder(&self) -> PathBuf {
        self.folder.join("build")
    }
}

/// What is in the folder; nothing if there is no folder.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The folder, and after it the folders of the variable.
fn before(variable: &str, folder: &Path) -> OsString {
    let others = env::var_os(variable).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    let all = env::join_paths([folder.to_path_buf()].into_iter().chain(others));
    all.unwrap_or_else(|_| folder.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_a_variable_stay_behind_the_new_one() {
        let path = before("PATH", Path::new("/kit"));
        let folders: Vec<_> = env::split_paths(&path).collect();
        assert_eq!(folders[0], Path::new("/kit"));
        assert!(folders.len() > 1, "{folders:?}");
        assert_eq!(before("NO_SUCH_VARIABLE_HERE", Path::new("/kit")), "/kit");
    }
}
