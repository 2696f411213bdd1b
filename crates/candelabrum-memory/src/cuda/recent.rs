//! The last launches of this process, for the errors that a kernel causes.
//!
//! A kernel runs after its launch has returned, so the driver reports what the kernel did wrong at some later call,
//! which has nothing to do with it.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// The number of launches that an error names.
const COUNT: usize = 16;

/// The work and its blocks, `None` for the work of a library. The latest is at the end.
static LAUNCHES: Mutex<VecDeque<(&'static str, Option<usize>)>> = Mutex::new(VecDeque::new());

/// Notes that work was enqueued: a kernel with its blocks, or a call of a library.
pub(super) fn note(work: &'static str, blocks: Option<usize>) {
    let mut launches = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
    if launches.len() == COUNT {
        launches.pop_front();
    }
    launches.push_back((work, blocks));
}

/// The last launches, if a kernel has caused the error: `; the last launches: sum_slices (40 blocks), ...`.
pub(super) fn suspects(error: DriverError) -> String {
    use CUresult as Code;
    let by_a_kernel = matches!(
        error.0,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_LAUNCH_FAILED
    );
    let launches = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
    if !by_a_kernel || launches.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for (work, blocks) in &*launches {
        text.push_str(if text.is_empty() { "; the last launches: " } else { ", " });
        text.push_str(work);
        if let Some(blocks) = blocks {
            let _ = write!(text, " ({blocks} blocks)");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_kernel_names_the_last_launches() {
        let of = |code| suspects(DriverError(code));
        for blocks in 0..20 {
            note("scale", Some(blocks));
        }
        note("cublasGemmEx", None);
        let text = of(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(
            text.starts_with("; the last launches: scale (5 blocks), scale (6 blocks), "),
            "{text}"
        );
        assert!(text.ends_with(", scale (19 blocks), cublasGemmEx"), "{text}");
        assert_eq!(of(CUresult::CUDA_ERROR_OUT_OF_MEMORY), "");
    }
}
