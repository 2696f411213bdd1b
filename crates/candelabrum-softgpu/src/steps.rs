//! The steps of building a kit. Each writes its result under another name first, so that a program
//! which uses the old one keeps it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::digest::{Digest, files_in};
use crate::{Error, Result};

const COMPILER: &str = "g++";
/// `-march` makes matrix products tolerable. Without `-ffp-contract=off` it would also round
/// differently from the CPU's own operations.
const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O3",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-unknown-pragmas",
];

/// Runs the command and returns what it printed on stdout.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.output();
    let output = output.map_err(|source| Error::Start { command: shown.clone(), source })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let output = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Error::Failed { command: shown, output })
}

/// Compiles the sources of which no object with their digest is in the folder, and returns all
/// objects.
pub(crate) fn objects(package: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    make_folder(folder)?;
    let sources = files_in(&package.join("cpp"))?;
    let (headers, sources): (Vec<_>, Vec<_>) =
        sources.into_iter().partition(|path| path.extension().is_some_and(|e| e == "h"));
    let include = package.join("include");
    let mut common = Digest::default();
    common.text(COMPILER);
    FLAGS.iter().for_each(|flag| common.text(flag));
    common.folder(&include)?;
    for header in &headers {
        common.file(header)?;
    }
    let mut all = Vec::new();
    let mut missing = Vec::new();
    for source in sources {
        let mut digest = common.clone();
        digest.file(&source)?;
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let object = folder.join(format!("{stem}.{}.o", digest.finish()));
        if !object.exists() {
            remove_old(folder, |name| name.split('.').next() == Some(&*stem))?;
            missing.push((source, object.clone()));
        }
        all.push(object);
    }
    let compile = |(source, object): &(PathBuf, PathBuf)| {
        let part = object.with_extension("part");
        let mut command = Command::new(COMPILER);
        command.args(FLAGS).arg("-I").arg(&include).arg("-c").arg(source).arg("-o").arg(&part);
        run(&mut command)?;
        fs::rename(&part, object).map_err(Error::file("write", object))
    };
    in_parallel(missing, compile)?;
    Ok(all)
}

/// Removes what earlier versions left in the folder, by its name.
pub(crate) fn remove_old(folder: &Path, is_old: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::file("list", folder))? {
        let path = entry.map_err(Error::file("list", folder))?.path();
        if path.file_name().is_some_and(|name| is_old(&name.to_string_lossy())) {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    Ok(())
}

/// Calls `work` for every item, on as many threads as there are processors, up to the first error.
fn in_parallel<T: Send>(items: Vec<T>, work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let left = Mutex::new(items);
    let next = || left.lock().ok().and_then(|mut left| left.pop());
    thread::scope(|scope| {
        let until_empty = || -> Result<()> {
            while let Some(item) = next() {
                work(&item)?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(until_empty)).collect();
        let ended = workers.into_iter().map(|worker| worker.join().expect("no step panics"));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Links the objects to one library under the names of all libraries that it stands in for.
pub(crate) fn link(objects: &[PathBuf], folder: &Path) -> Result<()> {
    const NAMES: [&str; 7] = [
        "libcuda.so.1",
        "libnvrtc.so.13",
        "libcurand.so.10",
        "libcublas.so.13",
        "libcublasLt.so.13",
        "libnccl.so.2",
        "libcudnn.so.9",
    ];
    let library = folder.join("libsoftgpu.so");
    let mut digest = Digest::default();
    objects.iter().for_each(|object| digest.text(&object.to_string_lossy()));
    once(folder, "linked", &digest.finish(), || {
        let part = folder.join("libsoftgpu.so.part");
        let mut command = Command::new(COMPILER);
        command.arg("-shared").arg("-o").arg(&part).args(objects);
        command.args(["-Wl,-Bsymbolic", "-Wl,--no-undefined", "-ldl", "-lpthread", "-lrt"]);
        run(&mut command)?;
        fs::rename(&part, &library).map_err(Error::file("write", &library))?;
        NAMES.iter().try_for_each(|name| point(&folder.join(name), Path::new("libsoftgpu.so")))
    })
}

/// Makes the archives that programs are linked with: trampolines that open each library at the
/// first call (`scripts/cuda/gen_lazy.py`).
pub(crate) fn archives(root: &Path, folder: &Path) -> Result<()> {
    let script = root.join("scripts/cuda/gen_lazy.py");
    let lock = root.join("Cargo.lock");
    let mut digest = Digest::default();
    digest.file(&script)?;
    digest.file(&lock)?;
    once(folder, "archives", &digest.finish(), || {
        run(Command::new("python3").arg(&script).arg(cudarc(root)?).arg(folder))?;
        // candle-kernels asks for this one, and calls nothing of it.
        let empty = folder.join("libcudart.a");
        run(Command::new("ar").arg("crs").arg(empty)).map(drop)
    })
}

/// The folder with cudarc's sources, which cargo downloads where it has to.
fn cudarc(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // cudarc is a package of the feature `cuda` only, and other platforms have other packages.
    let of_cuda = ["--all-features", "--filter-platform", "x86_64-unknown-linux-gnu"];
    command.args(["metadata", "--format-version", "1"]).args(of_cuda).current_dir(root);
    let metadata = run(&mut command)?;
    let metadata = String::from_utf8_lossy(&metadata);
    let manifests = metadata.split("\"manifest_path\":\"").skip(1);
    let folders = manifests.filter_map(|rest| rest.split('"').next()?.strip_suffix("/Cargo.toml"));
    let is_cudarc = |folder: &&str| {
        let name = folder.rsplit('/').next().unwrap_or("");
        let version = name.strip_prefix("cudarc").map(|rest| rest.trim_start_matches('-'));
        version.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    folders.into_iter().find(is_cudarc).map(PathBuf::from).ok_or(Error::NoCudarc)
}

/// Runs the step if the folder's note of this name has another digest, and writes the note after it.
pub(crate) fn once(
    folder: &Path,
    name: &str,
    digest: &str,
    step: impl FnOnce() -> Result<()>,
) -> Result<()> {
    make_folder(folder)?;
    let note = folder.join(format!("{name}.digest"));
    if fs::read_to_string(&note).is_ok_and(|text| text == digest) {
        return Ok(());
    }
    step()?;
    fs::write(&note, digest).map_err(Error::file("write", &note))
}

pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::file("make", folder))
}

/// Makes the symbolic link lead to the target.
pub(crate) fn point(link: &Path, target: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|now| now == target) {
        return Ok(());
    }
    if link.is_symlink() {
        fs::remove_file(link).map_err(Error::file("remove", link))?;
    }
    std::os::unix::fs::symlink(target, link).map_err(Error::file("write", link))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A new folder, removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("candelabrum-softgpu-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            make_folder(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_step_is_repeated_when_its_digest_changes_or_it_failed() {
        let folder = Folder::new("once");
        let count = Cell::new(0);
        let step = |digest: &str, result: fn() -> Result<()>| {
            let counted = || {
                count.set(count.get() + 1);
                result()
            };
            (once(&folder.0, "step", digest, counted).is_ok(), count.get())
        };
        assert_eq!(step("a", || Ok(())), (true, 1));
        assert_eq!(step("a", || Ok(())), (true, 1));
        assert_eq!(step("b", || Err(Error::NoCudarc)), (false, 2));
        assert_eq!(step("b", || Ok(())), (true, 3));
    }

    #[test]
    fn a_link_is_led_to_its_target() {
        let folder = Folder::new("link");
        let link = folder.0.join("link");
        for target in ["one", "one", "two"] {
            point(&link, Path::new(target)).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(target));
        }
    }

    #[test]
    fn a_failed_item_is_an_error_and_the_others_are_worked_on() {
        let done = Mutex::new(Vec::new());
        let work = |item: &usize| {
            done.lock().unwrap().push(*item);
            if *item == 3 { Err(Error::NoCudarc) } else { Ok(()) }
        };
        assert!(in_parallel(vec![1, 2, 4], work).is_ok());
        assert!(in_parallel(vec![3], work).is_err());
        let mut done = done.lock().unwrap().clone();
        done.sort_unstable();
        assert_eq!(done, [1, 2, 3, 4]);
    }

    #[test]
    fn the_error_of_a_program_has_its_words() {
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
