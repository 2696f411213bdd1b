"""The machine: its facts, the environment of programs on it, and what a first use of it reads."""

import glob
import importlib.util
import lzma
import os
import pathlib
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from runner import last_json, run

HERE = pathlib.Path(__file__).resolve().parent


def libraries():
    """Folders of CUDA's libraries in Python's packages."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations) if spec else []
    return [folder for root in roots for folder in sorted(glob.glob(f"{root}/*/lib"))]


def has_torch():
    return importlib.util.find_spec("torch") is not None


class Kernels:
    """The compiled kernels of the bundle, in a folder that the programs accept: one of their own
    user, in which nobody else can write. What the folder has afterwards and not before was compiled
    on this machine."""

    def __init__(self, carried, work):
        self.folder = pathlib.Path(work) / "kernels"
        self.folder.mkdir(mode=0o700)
        for file in sorted(carried.glob("*")):
            shutil.copyfile(file, self.folder / file.name)
        self.carried = self.names()

    def names(self):
        return {file.name for file in self.folder.iterdir()}

    def fields(self):
        return {"carried": len(self.carried), "compiled_here": len(self.names() - self.carried)}


def environment(kernels):
    """The variables of all programs."""
    variables = dict(os.environ, REQUIRE_GPUS="1", RUST_BACKTRACE="1")
    variables["CANDELABRUM_KERNEL_CACHE"] = str(kernels.folder)
    paths = libraries() + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    variables["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    # Several ranks on one GPU, for correctness.
    variables.update(
        NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", NCCL_NVLS_ENABLE="0",
        NCCL_MNNVL_ENABLE="0", NCCL_MAX_CTAS="2",
    )  # fmt: skip
    return variables


def unpack(packed, work):
    """The programs of the bundle, ready to run."""
    folder = pathlib.Path(work) / "programs"
    folder.mkdir()

    def one(file):
        program = folder / file.with_suffix("").name
        with lzma.open(file) as source, open(program, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        program.chmod(0o755)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, sorted(packed.glob("*.xz"))))
    return folder


# What is asked of the machine, as shell commands.
FACTS = {
    "nvidia-smi": "nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,"
    "clocks.sm,clocks.max.sm,clocks.mem,power.limit,ecc.mode.current,mig.mode.current --format=csv; "
    "nvidia-smi -q | head -c 16000",
    "system": "uname -a; cat /etc/os-release | head -4; nproc; free -m; ldd --version | head -1; id -u",
    "shared memory": "df -m /dev/shm /tmp; ulimit -a",
    "loopback": "cat /sys/class/net/lo/operstate /sys/class/net/lo/flags; ls /sys/class/net",
    "home": 'echo "$HOME"; touch "$HOME/.written" && rm "$HOME/.written" && echo writable; '
    'ls -d "$HOME/.nv" "$HOME/.cache"',
    "tools": "for tool in ncu compute-sanitizer nvcc cuda-gdb nsys cuobjdump gcc cargo; do "
    'echo "$tool: $(command -v $tool)"; done',
    "devices": "ls -l /dev/nvidia*; cat /proc/driver/nvidia/version; cat /proc/cmdline",
}


def facts(journal, clock, variables):
    """Asks everything at the same time."""

    def ask(item):
        name, command = item
        result = run(["sh", "-c", f"{command}; true"], 10, clock, variables)
        journal.result(f"fact {name}", result, variables, output=result.whole())

    def versions():
        result = run([sys.executable, HERE / "versions.py"], 20, clock, variables)
        # A library that ends the process leaves the lines before it.
        found = last_json(result.whole()) or {}
        files = found.pop("files", [])
        journal.versions = found
        journal.result("fact versions", result, variables, files=files)

    with ThreadPoolExecutor(len(FACTS) + 1) as pool:
        waiting = pool.submit(versions)
        list(pool.map(ask, FACTS.items()))
        waiting.result()


def warm(clock, variables):
    """Reads CUDA's libraries and imports PyTorch in the background, as their first use reads a disk
    that may be slow."""

    def read():
        order = ["cublasLt", "cublas", "nvrtc", "cudnn", "nccl"]
        files = [file for folder in libraries() for file in glob.glob(f"{folder}/*.so*")]
        files.sort(key=lambda file: [name in os.path.basename(file) for name in order], reverse=True)
        for file in files:
            if clock.left() < 1:
                return
            with open(file, "rb") as source:
                while source.read(1 << 24):
                    pass

    def torch():
        run([sys.executable, "-c", "import torch; torch.zeros(1)"], 60, clock, variables)

    threads = [threading.Thread(target=read, daemon=True)]
    if has_torch():
        threads.append(threading.Thread(target=torch, daemon=True))
    for thread in threads:
        thread.start()


def work_folder():
    return tempfile.mkdtemp(prefix="gpu-check-")
