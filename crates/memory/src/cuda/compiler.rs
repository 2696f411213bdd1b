//! The compilation of kernels. NVRTC compiles a source of kernels at its first use on a device, and
//! the program keeps the result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{CudaFunction, CudaModule, CudaStream, sys};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::cuda_error;
use crate::{Error, Result};

/// The source of some kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The name of the source in errors. Two sources with one name must have one text.
    pub(super) name: &'static str,
    /// The text, in parts.
    pub(super) text: [&'static str; 2],
}

/// The kernels that were used so far, by the number of the device and the name of the source.
#[derive(Default)]
struct Compiled {
    modules: HashMap<(usize, &'static str), Arc<CudaModule>>,
    functions: HashMap<(usize, &'static str, &'static str), CudaFunction>,
}

static COMPILED: OnceLock<Mutex<Compiled>> = OnceLock::new();

/// Kernel `name` of `source`, for the device of `stream`.
///
/// # Errors
/// A source that does not compile, or a missing NVRTC.
pub(super) fn function(
    stream: &CudaStream,
    source: Source,
    name: &'static str,
) -> Result<CudaFunction> {
    let device = stream.context().ordinal();
    let compiled = COMPILED.get_or_init(Mutex::default);
    let mut compiled = compiled.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = compiled.functions.get(&(device, source.name, name)) {
        return Ok(function.clone());
    }
    let module = match compiled.modules.get(&(device, source.name)) {
        Some(module) => Arc::clone(module),
        None => {
            let module = compile(stream, source)?;
            compiled.modules.insert((device, source.name), Arc::clone(&module));
            module
        }
    };
    let function = module.load_function(name);
    let function = function.map_err(|error| cuda_error("cuModuleGetFunction", error))?;
    compiled.functions.insert((device, source.name, name), function.clone());
    Ok(function)
}

fn compile(stream: &CudaStream, source: Source) -> Result<Arc<CudaModule>> {
    use sys::CUdevice_attribute as Attribute;
    let context = stream.context();
    let attribute = |attribute| {
        let value = context.attribute(attribute);
        value.map_err(|error| cuda_error("cuDeviceGetAttribute", error))
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let options = CompileOptions {
        // A multiplication and an addition are rounded separately, as on the CPU, so an update has
        // the same bits on both.
        fmad: Some(false),
        options: vec![format!("--gpu-architecture=compute_{major}{minor}")],
        name: Some(format!("{}.cu", source.name)),
        ..CompileOptions::default()
    };
    let text = compile_ptx_with_opts(source.text.concat(), options).map_err(|error| {
        let message = format!("the kernels of {}.cu: {error}", source.name);
        Error::Cuda { call: "nvrtcCompileProgram", message }
    })?;
    context.load_module(text).map_err(|error| cuda_error("cuModuleLoadData", error))
}
