//! Compiled kernels: whether the driver takes them, and what they need.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candelabrum_memory::cuda::{Grid, Kernels};
use candle_core::cuda_backend::kernels;
use cudarc::driver::{DriverError, sys};
use serde_json::{Value, json};

use crate::driver;
use crate::probe::{Probe, say};

/// The beginning of a file of compiled kernels (`cuda/kernel_cache.rs`), up to its version.
const MAGIC: &[u8] = b"candelabrum kernels ";
const DIGEST: usize = 32;

/// Kernels that nobody has compiled before, so the cache must keep them.
const NEW: Kernels = Kernels {
    name: "probe",
    text: "extern \"C\" __global__ void probe_nothing(unsigned long long n) {}\n",
};

/// Whether the folder of compiled kernels is used: a new kernel must be found in it afterwards.
pub(crate) fn cache(probe: &Probe) -> Result<bool> {
    let folder = probe.kernels.as_deref().context("no folder of compiled kernels was named")?;
    let count = || fs::read_dir(folder).map(Iterator::count);
    let (before, start) = (count()?, Instant::now());
    probe.gpu.launch(NEW, "probe_nothing", Grid::one_block(1), &[])?;
    probe.stream.synchronize()?;
    let (after, seconds) = (count()?, start.elapsed().as_secs_f64());
    say(&json!({"files_before": before, "files_after": after, "compile_seconds": seconds}));
    Ok(after > before)
}

/// Loads every file of the folder and asks for each of its kernels.
pub(crate) fn own(probe: &Probe) -> Result<bool> {
    let folder = probe.kernels.as_deref().context("no folder of compiled kernels was named")?;
    probe.stream.context().bind_to_thread()?;
    let (mut modules, mut kernels, mut others, mut bad) = (0, 0, 0, Vec::new());
    let mut largest = (0, String::new());
    let start = Instant::now();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let Some(image) = image(&path)? else { continue };
        let names = names(&image);
        match module(&image, &names) {
            Ok(found) => {
                modules += 1;
                kernels += found.len();
                for kernel in found {
                    let registers = kernel["registers"].as_i64().unwrap_or(0);
                    if registers > largest.0 {
                        largest = (registers, kernel.to_string());
                    }
                    if kernel["local_bytes"].as_i64() != Some(0) {
                        say(&json!({"uses_local_memory": kernel}));
                    }
                }
            }
            // The folder may have machine code for several GPUs.
            Err(error) if is_of_another_gpu(&error) => others += 1,
            Err(error) => bad.push(format!("{}, {names:?}: {error:#}", path.display())),
        }
    }
    let (first, seconds) = (bad.first(), start.elapsed().as_secs_f64());
    say(&json!({
        "modules": modules, "kernels": kernels, "of_other_gpus": others, "bad": bad.len(),
        "first_bad": first, "most_registers": largest.1, "seconds": seconds,
    }));
    Ok(bad.is_empty() && (modules > 0 || others == 0))
}

/// Loads candle's kernels, which are PTX: the driver compiles them.
pub(crate) fn candles(probe: &Probe) -> Result<bool> {
    probe.stream.context().bind_to_thread()?;
    let all = [
        ("affine", &kernels::AFFINE),
        ("binary", &kernels::BINARY),
        ("cast", &kernels::CAST),
        ("conv", &kernels::CONV),
        ("fill", &kernels::FILL),
        ("indexing", &kernels::INDEXING),
        ("quantized", &kernels::QUANTIZED),
        ("reduce", &kernels::REDUCE),
        ("sort", &kernels::SORT),
        ("ternary", &kernels::TERNARY),
        ("unary", &kernels::UNARY),
    ];
    let mut good = true;
    for (name, candles) in all {
        let image = [candles.ptx().as_bytes(), &[0]].concat();
        let start = Instant::now();
        let found = module(&image, &names(&image));
        let seconds = start.elapsed().as_secs_f64();
        let count = found.as_ref().map_or(0, Vec::len);
        let error = found.err().map(|error| format!("{error:#}"));
        good &= error.is_none();
        say(&json!({"module": name, "kernels": count, "seconds": seconds, "error": error}));
    }
    Ok(good)
}

/// The image of a file of compiled kernels, with a 0 behind it; `None` if it is no such file.
fn image(path: &Path) -> Result<Option<Vec<u8>>> {
    let content = fs::read(path)?;
    let Some(end) = content.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    if !content.starts_with(MAGIC) {
        return Ok(None);
    }
    ensure!(content.len() > end + 1 + DIGEST, "{} is cut off", path.display());
    Ok(Some([&content[end + 1 + DIGEST..], &[0]].concat()))
}

/// The names of the kernels of an image. In PTX each is after `.entry`, in machine code each has a
/// section `.text.NAME`, and the software GPU's text names a file with a symbol of each.
fn names(image: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(image);
    if let Some(path) = text.strip_prefix("// softgpu kernels: ").and_then(|it| it.lines().next()) {
        return after(&fs::read(path).unwrap_or_default(), b"softgpu_kernel_");
    }
    let mark: &[u8] = if image.starts_with(b"\x7fELF") { b".text." } else { b".entry " };
    after(image, mark)
}

/// The words after each place of a mark, each once.
fn after(bytes: &[u8], mark: &[u8]) -> Vec<String> {
    let places = bytes.windows(mark.len()).enumerate().filter(|(_, window)| *window == mark);
    let word = |(at, _): (usize, &[u8])| {
        let rest = bytes[at + mark.len()..].iter();
        let word = rest.take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        word.map(|&byte| char::from(byte)).collect::<String>()
    };
    let mut found: Vec<String> = places.map(word).filter(|word| !word.is_empty()).collect();
    found.sort();
    found.dedup();
    found
}

/// Loads an image, and asks what each of its kernels needs.
fn module(image: &[u8], names: &[String]) -> Result<Vec<Value>> {
    use sys::CUfunction_attribute as Attribute;
    let module = driver::load(image)?;
    let one = |name: &String| -> Result<Value> {
        let kernel = driver::kernel(module, name)?;
        let number = |what| driver::attribute(kernel, what);
        Ok(json!({
            "kernel": name,
            "registers": number(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            "local_bytes": number(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            "shared_bytes": number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            "most_threads": number(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        }))
    };
    names.iter().map(|name| one(name).with_context(|| format!("kernel {name}"))).collect()
}

fn is_of_another_gpu(error: &anyhow::Error) -> bool {
    let other = sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
    error.downcast_ref::<DriverError>().is_some_and(|error| error.0 == other)
}
