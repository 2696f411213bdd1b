//! The compilation of kernels. NVRTC compiles a source of kernels at its first use on a device. The
//! program keeps the result, also on disk for later processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::{CudaFunction, CudaModule, CudaStream, sys};
use cudarc::nvrtc::Ptx;

use super::cuda_error;
use super::kernel_cache::{CacheKey, KernelCache};
use super::nvrtc::{self, Target};
use super::region::bind;
use crate::{ElementType, Error, Result};

/// The source of some kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelSource {
    /// The name of the source in errors. Two sources with one name must have one text.
    pub(super) name: &'static str,
    /// The type that the text knows as `number_t`: f32, f16 or bf16.
    pub(super) number: ElementType,
    /// The text, in parts.
    pub(super) text: [&'static str; 2],
}

impl KernelSource {
    /// The definition of `number_t`, which comes before the text.
    fn definition(self) -> &'static str {
        match self.number {
            ElementType::F16 => {
                concat!(include_str!("kernels/half.cu"), "typedef f16_t number_t;\n")
            }
            ElementType::Bf16 => {
                concat!(include_str!("kernels/half.cu"), "typedef bf16_t number_t;\n")
            }
            _ => "typedef float number_t;\n",
        }
    }

    fn key(self, stream: &CudaStream) -> ModuleKey {
        (stream.context().ordinal(), self.name, self.number)
    }
}

/// A source for one type of numbers on one device.
type ModuleKey = (usize, &'static str, ElementType);

/// The kernels that were used so far.
#[derive(Default)]
struct Compiled {
    modules: HashMap<ModuleKey, Arc<CudaModule>>,
    functions: HashMap<(ModuleKey, &'static str), CudaFunction>,
}

static COMPILED: OnceLock<Mutex<Compiled>> = OnceLock::new();

fn compiled() -> MutexGuard<'static, Compiled> {
    let compiled = COMPILED.get_or_init(Mutex::default);
    compiled.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Compiled {
    fn module(&mut self, stream: &CudaStream, source: KernelSource) -> Result<Arc<CudaModule>> {
        let key = source.key(stream);
        if let Some(module) = self.modules.get(&key) {
            return Ok(Arc::clone(module));
        }
        let module = compile(stream, source)?;
        self.modules.insert(key, Arc::clone(&module));
        Ok(module)
    }
}

/// Kernel `name` of `source`, for the device of `stream`.
///
/// # Errors
/// A source that does not compile, or a missing NVRTC.
pub(super) fn function(
    stream: &CudaStream,
    source: KernelSource,
    name: &'static str,
) -> Result<CudaFunction> {
    let key = (source.key(stream), name);
    let mut compiled = compiled();
    if let Some(function) = compiled.functions.get(&key) {
        return Ok(function.clone());
    }
    let function = compiled.module(stream, source)?.load_function(name);
    let function = function.map_err(|error| cuda_error("cuModuleGetFunction", error))?;
    compiled.functions.insert(key, function.clone());
    Ok(function)
}

/// Enqueues a copy of `numbers` to the beginning of constant `name` of `source`, which must have as
/// many `float`s or more.
///
/// # Errors
/// Those of [`function`], a missing constant, and one that is too small.
pub(super) fn write_constant(
    stream: &Arc<CudaStream>,
    source: KernelSource,
    name: &'static str,
    numbers: &[f32],
) -> Result<()> {
    bind(stream)?;
    let module = compiled().module(stream, source)?;
    let constant = module.get_global(name, stream);
    let mut constant = constant.map_err(|error| cuda_error("cuModuleGetGlobal", error))?;
    let bytes: &[u8] = bytemuck::cast_slice(numbers);
    if bytes.len() > constant.len() {
        let what = format!("{} bytes in constant {name} of {}", bytes.len(), constant.len());
        return Err(Error::Unsupported { what });
    }
    let copied = stream.memcpy_htod(bytes, &mut constant);
    copied.map_err(|error| cuda_error("cuMemcpyHtoDAsync", error))
}

fn compile(stream: &CudaStream, source: KernelSource) -> Result<Arc<CudaModule>> {
    use sys::CUdevice_attribute as Attribute;
    let context = stream.context();
    let attribute = |attribute| {
        let value = context.attribute(attribute);
        value.map_err(|error| cuda_error("cuDeviceGetAttribute", error))
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let target = Target::from_architecture(10 * major + minor);
    // A multiplication and an addition are rounded separately, as on the CPU, so an update has the
    // same bits on both.
    let options = ["--fmad=false".to_owned(), target.option()];
    let text = [&[source.definition()], &source.text[..]].concat().concat();
    let kept = KernelCache::open().and_then(|cache| {
        // scripts/cuda/compile_kernels.py makes the same keys.
        let key = CacheKey::new(&[&nvrtc::version()?, &options.join(" "), &text]);
        Some((cache, key))
    });
    if let Some((cache, key)) = kept
        && let Some(image) = cache.read(key)
    {
        // A driver that refuses the image may accept a new one.
        match context.load_module(Ptx::from_binary(image)) {
            Ok(module) => return Ok(module),
            Err(error) => tracing::debug!("the kept kernels of {}.cu: {error}", source.name),
        }
    }
    let image = nvrtc::compile(&format!("{}.cu", source.name), &text, &options, target)?;
    let module = context.load_module(Ptx::from_binary(image.clone()));
    let module = module.map_err(|error| cuda_error("cuModuleLoadData", error))?;
    if let Some((cache, key)) = kept {
        cache.write(key, &image);
    }
    Ok(module)
}
