"""Prints the versions of CUDA's libraries as JSON. A process of its own, since a library that does
not load may end it."""

import contextlib
import ctypes
import json
import platform


def number(library, function, *rest, returns=False):
    """What a function of a library says, or why it says nothing."""
    try:
        call = getattr(ctypes.CDLL(library), function)
        if returns:
            call.restype = ctypes.c_size_t
            return call()
        numbers = [ctypes.c_int(-1) for _ in range(1 + len(rest))]
        code = call(*(ctypes.byref(number) for number in numbers))
        got = [number.value for number in numbers]
        return got if code == 0 else f"error {code}"
    except (OSError, AttributeError) as error:
        return str(error)


def main():
    found = {"python": platform.python_version()}
    print(json.dumps(found), flush=True)
    found["driver"] = number("libcuda.so.1", "cuDriverGetVersion")
    found["nvrtc"] = number("libnvrtc.so.13", "nvrtcVersion", 0)
    found["cublasLt"] = number("libcublasLt.so.13", "cublasLtGetVersion", returns=True)
    found["cudnn"] = number("libcudnn.so.9", "cudnnGetVersion", returns=True)
    found["nccl"] = number("libnccl.so.2", "ncclGetVersion")
    print(json.dumps(found), flush=True)
    # Which files they are.
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="ascii") as maps:
        files = {line.split()[-1] for line in maps if ".so" in line}
        wanted = ("cuda", "nvrtc", "cublas", "cudnn", "nccl", "softgpu")
        found["files"] = sorted(file for file in files if any(word in file for word in wanted))
    with contextlib.suppress(Exception):
        from importlib.metadata import version

        found["torch"] = version("torch")
    print(json.dumps(found), flush=True)


main()
