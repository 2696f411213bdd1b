//! NVRTC, NVIDIA's compiler of kernels at run time.
//!
//! It makes a *cubin*, the code of one architecture of GPUs, which the driver loads as it is. For a GPU that is newer
//! than the library it makes PTX, a text that the driver compiles in each process.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use crate::{Error, Result};

/// What a text is compiled to, and the architecture: 90 stands for compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Cubin(c_int),
    Ptx(c_int),
}

impl Target {
    /// The target for a device of this architecture.
    pub(super) fn from_architecture(architecture: c_int) -> Self {
        let known = architectures();
        if known.contains(&architecture) {
            return Self::Cubin(architecture);
        }
        // A driver compiles PTX of an older architecture. A GPU that is older than all gets NVRTC's error.
        let older = known.into_iter().filter(|&known| known < architecture);
        Self::Ptx(older.max().unwrap_or(architecture))
    }

    /// The option that asks for it.
    pub(super) fn option(self) -> String {
        match self {
            Self::Cubin(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Self::Ptx(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        }
    }
}

/// The architectures that NVRTC knows. None if the library is missing.
fn architectures() -> Vec<c_int> {
    let mut count = 0;
    // SAFETY: NVRTC writes a number.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    let count = counted.result().map_or(0, |()| usize::try_from(count).unwrap_or(0));
    let mut known = vec![0; count];
    // SAFETY: NVRTC writes as many numbers as it has said.
    let listed = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    if listed.result().is_ok() { known } else { Vec::new() }
}

/// The version of NVRTC, if the library is there.
pub(super) fn version() -> Option<String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes to both numbers.
    let asked = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    asked.result().ok().map(|()| format!("{major}.{minor}"))
}

/// Compiles a text, whose file has this name in messages. The options include that of the target. The image is what
/// `cuModuleLoadData` takes: a cubin, or PTX with a zero at its end.
///
/// # Errors
/// What the compiler says, or a missing library.
pub(super) fn compile(name: &str, text: &str, options: &[String], to: Target) -> Result<Vec<u8>> {
    let program = NvrtcProgram::new(name, text)?;
    // SAFETY: the program is alive.
    let compiled = unsafe { result::compile_program(program.raw, options) };
    compiled.map_err(|error| program.error("nvrtcCompileProgram", error))?;
    program.image(to)
}

struct NvrtcProgram {
    raw: sys::nvrtcProgram,
    name: CString,
    /// NVRTC may refer to it.
    _text: CString,
}

impl NvrtcProgram {
    fn new(name: &str, text: &str) -> Result<Self> {
        let failed = |what: String| {
            let message = format!("the kernels of {name}: {what}");
            Error::Cuda { call: "nvrtcCreateProgram", message }
        };
        let zero = |_| failed("a zero in the text".to_owned());
        let (text, file) = (CString::new(text).map_err(zero)?, CString::new(name).map_err(zero)?);
        let raw = result::create_program(&text, Some(&file));
        let raw = raw.map_err(|error| failed(error.to_string()))?;
        Ok(Self { raw, name: file, _text: text })
    }

    fn image(&self, target: Target) -> Result<Vec<u8>> {
        type Size = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
        type Get = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;
        let (call, size, get): (_, Size, Get) = match target {
            Target::Cubin(_) => ("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
            Target::Ptx(_) => ("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
        };
        let failed = |error| self.error(call, error);
        let mut bytes = 0;
        // SAFETY: the program is alive, and NVRTC writes a number.
        let asked = unsafe { size(self.raw, &raw mut bytes) };
        asked.result().map_err(failed)?;
        let mut image = vec![0_u8; bytes];
        // SAFETY: the program is alive, and NVRTC writes as many bytes as it has said.
        let got = unsafe { get(self.raw, image.as_mut_ptr().cast()) };
        got.result().map_err(failed)?;
        Ok(image)
    }

    /// The error with what the compilers have written.
    fn error(&self, call: &'static str, error: NvrtcError) -> Error {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.raw) }.unwrap_or_default();
        let log = CStr::from_bytes_until_nul(bytemuck::cast_slice(&log)).unwrap_or_default();
        let (name, log) = (self.name.to_string_lossy(), log.to_string_lossy());
        Error::Cuda { call, message: format!("the kernels of {name}: {error}: {}", log.trim()) }
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program is alive, and this was its last use.
        let destroyed = unsafe { result::destroy_program(self.raw) };
        if let Err(error) = destroyed {
            tracing::debug!("nvrtcDestroyProgram: {error}");
        }
    }
}
