// The names of libcuda's results, and the report of functions that are missing here.
#include "status.h"
#include "common.h"

static const char *error_name(int code) {
    switch (code) {
    case OK: return "CUDA_SUCCESS";
    case INVALID: return "CUDA_ERROR_INVALID_VALUE";
    case OOM: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INIT: return "CUDA_ERROR_NOT_INITIALIZED";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case BAD_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case BAD_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
    case BAD_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case BAD_PTX: return "CUDA_ERROR_INVALID_PTX";
    case NO_FILE: return "CUDA_ERROR_FILE_NOT_FOUND";
    case BAD_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
    case BAD_STATE: return "CUDA_ERROR_ILLEGAL_STATE";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case NOT_READY: return "CUDA_ERROR_NOT_READY";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case ASSERT: return "CUDA_ERROR_ASSERT";
    case MISALIGNED: return "CUDA_ERROR_MISALIGNED_ADDRESS";
    case LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    case CAPTURING: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    }
    return "CUDA_ERROR_UNKNOWN";
}

API int cuGetErrorName(int code, const char **name) {
    *name = error_name(code);
    return OK;
}
API int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

// The archives of scripts/cuda/gen_lazy.py call this for a function that no file here defines,
// once for each function. The caller then gets the library's code for "not initialised".
API void softgpu_missing(const char *name) { say("%s is not implemented", name); }
