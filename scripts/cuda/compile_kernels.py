#!/usr/bin/env python3
"""Compiles the project's own kernels by NVRTC, which needs no GPU, and names those that fail.

With --cache it writes them to a folder, where programs whose CANDELABRUM_KERNEL_CACHE is this folder
find them, so that they compile nothing. With --ptxas it writes to a file what NVIDIA's assembler, which is a part
of NVRTC, says of each kernel: its registers and its memory. `cargo xtask kernels` reads that.
"""

import argparse
import concurrent.futures
import ctypes
import hashlib
import os
import pathlib
import re
import sys

# The types that a text can know as number_t.
NUMBERS = ["float", "f16_t", "bf16_t"]


def of_numbers(number, half):
    """The beginning of a text, as crates/candelabrum-memory/src/cuda/compiler.rs puts it."""
    return ("" if number == "float" else half) + f"typedef {number} number_t;\n"


def texts(root):
    """The text of each source, as the program passes it to NVRTC."""
    memory = root / "crates/candelabrum-memory/src/cuda/kernels"
    sums, half = (memory / "sums.cu").read_text(), (memory / "half.cu").read_text()
    formula = sums + (memory / "formula.cu").read_text()
    floats = of_numbers("float", half)
    yield memory / "checks.cu", floats + sums + (memory / "checks.cu").read_text()
    yield memory / "span.cu", floats + (memory / "span.cu").read_text()
    for number in NUMBERS:
        for path in (memory / "numbers.cu", memory / "rounding.cu"):
            yield path, of_numbers(number, half) + path.read_text()
    # The kernels of an operation can have several texts, which its file of Rust puts together.
    for path in sorted(root.glob("crates/candelabrum-nn/src/**/*.rs")):
        names = re.findall(r'include_str!\("([^"]+\.cu)"\)', path.read_text())
        text = "".join((path.parent / name).read_text() for name in names)
        for number in NUMBERS if "number_t" in text else NUMBERS[:1]:
            if names:
                yield path, of_numbers(number, half) + text
    for path in sorted(root.glob("crates/candelabrum-dist/src/strategy/gpu/*.cu")):
        yield path, floats + path.read_text()
    for path in sorted(root.glob("crates/candelabrum-optim/src/kernels/*.cu")):
        yield path, floats + formula + path.read_text()
    for path in sorted(root.glob("examples/*.cu")):
        yield path, floats + path.read_text()


def operation(path):
    """The name of an operation, whose kernels are those of `gpu.rs` in its folder, or that of another file."""
    return path.parent.name if path.name == "gpu.rs" else path.stem


class Nvrtc:
    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, text, options):
        """The cubin, or None if NVRTC refuses the text, and what the compilers say."""
        program = ctypes.c_void_p()
        code = self.library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        )
        if code != 0:
            return None, f"nvrtcCreateProgram gives {code}"
        options = [option.encode() for option in options]
        options = (ctypes.c_char_p * len(options))(*options)
        code = self.library.nvrtcCompileProgram(program, len(options), options)
        said = self.get(program, "ProgramLog").decode(errors="replace").strip("\0\n ")
        image = self.get(program, "CUBIN") if code == 0 else None
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return image, said

    def get(self, program, what):
        """A result of the program, all its bytes."""
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        result = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, result)
        return result.raw

    def keep(self, folder, text, options, image):
        """Writes a file as crates/candelabrum-memory/src/cuda/kernel_cache.rs does."""
        key = hashlib.sha256()
        for part in (self.version, " ".join(options), text):
            part = part.encode()
            key.update(len(part).to_bytes(8, "little") + part)
        key = key.digest()
        content = b"candelabrum kernels 2\n" + hashlib.sha256(key + image).digest() + image
        (folder / key.hex()).write_bytes(content)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libnvrtc.so")
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, help="a folder for the compiled kernels")
    parser.add_argument("--ptxas", type=pathlib.Path, help="a file for what ptxas says")
    parser.add_argument(
        "--architecture", nargs="*", default=["90"], help="those of GPUs, for instance 90 for H200"
    )
    parser.add_argument("--only", nargs="*", help="names of operations, or of files without their extensions")
    args = parser.parse_args()
    if args.cache:
        os.umask(0o077)
        args.cache.mkdir(parents=True, exist_ok=True)
    nvrtc = Nvrtc(args.library)
    sources = [
        (architecture, path, text)
        for architecture in args.architecture
        for path, text in texts(args.repository)
        if not args.only or operation(path) in args.only
    ]

    def compile(source):
        architecture, path, text = source
        options = ["--fmad=false", f"--gpu-architecture=sm_{architecture}"]
        verbose = ["--ptxas-options=--verbose"] if args.ptxas else []
        image, said = nvrtc.compile(text, options + verbose)
        if image and args.cache:
            nvrtc.keep(args.cache, text, options, image)
        return image is not None, said

    # NVRTC compiles on several threads at once.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile, sources))
    failed, described = 0, ""
    for (architecture, path, text), (is_compiled, said) in zip(sources, results):
        name = path.relative_to(args.repository)
        number = re.search(r"typedef (\w+) number_t;", text).group(1)
        described += f"== {name} {number} sm_{architecture}\n{said}\n"
        if not is_compiled:
            failed += 1
            print(f"{name} for {architecture}: {said}", file=sys.stderr)
    if args.ptxas:
        args.ptxas.write_text(described)
    count = len(sources)
    print(f"NVRTC {nvrtc.version} compiled {count - failed} of {count} sources of kernels")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
