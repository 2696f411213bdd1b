#!/usr/bin/env python3
"""Compiles the project's own kernels by NVIDIA's NVRTC, which needs no GPU, and names those that fail.

usage: compile_kernels.py LIBNVRTC REPOSITORY
"""

import ctypes
import pathlib
import re
import sys

OPTIONS = [b"--fmad=false", b"--gpu-architecture=compute_90"]


# The types that a text can know as number_t.
NUMBERS = ["float", "f16_t", "bf16_t"]


def of_numbers(number, half):
    """The beginning of a text, as crates/memory/src/cuda/compiler.rs puts it."""
    return ("" if number == "float" else half) + f"typedef {number} number_t;\n"


def texts(root):
    """The text of each source, as the program passes it to NVRTC."""
    memory = root / "crates/memory/src/cuda/kernels"
    sums, half = (memory / "sums.cu").read_text(), (memory / "half.cu").read_text()
    formula = sums + (memory / "formula.cu").read_text()
    yield memory / "checks.cu", sums + (memory / "checks.cu").read_text()
    yield memory / "span.cu", half + (memory / "span.cu").read_text()
    for number in NUMBERS:
        for path in (memory / "numbers.cu", memory / "rounding.cu"):
            yield path, of_numbers(number, half) + path.read_text()
    # The kernels of an operation can have several texts, which its file of Rust puts together.
    for path in sorted(root.glob("crates/nn/src/**/*.rs")):
        names = re.findall(r'include_str!\("([^"]+\.cu)"\)', path.read_text())
        text = "".join((path.parent / name).read_text() for name in names)
        for number in NUMBERS if "number_t" in text else NUMBERS[:1]:
            if names:
                yield path, of_numbers(number, half) + text
    for path in sorted(root.glob("crates/dist/src/strategy/gpu/*.cu")):
        yield path, path.read_text()
    for path in sorted(root.glob("crates/optim/src/kernels/*.cu")):
        yield path, formula + path.read_text()
    for path in sorted(root.glob("examples/*.cu")):
        yield path, path.read_text()


def compile_by(nvrtc, text):
    """What NVRTC says, if it refuses the text."""
    program = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    if code != 0:
        return f"nvrtcCreateProgram gives {code}"
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    code = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return None if code == 0 else log.value.decode(errors="replace").strip()


def main():
    library, root = sys.argv[1], pathlib.Path(sys.argv[2])
    nvrtc = ctypes.CDLL(library)
    count, failed = 0, 0
    for path, text in texts(root):
        count += 1
        if message := compile_by(nvrtc, text):
            failed += 1
            print(f"{path.relative_to(root)}: {message}", file=sys.stderr)
    print(f"NVRTC compiled {count - failed} of {count} sources of kernels")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
