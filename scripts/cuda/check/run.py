#!/usr/bin/env python3
"""Checks and measures everything on a machine with a GPU, by a bundle of `cargo xtask gpu-bundle`.

    python3 run.py --out FOLDER [--seconds 600] [--previous FOLDER/log.jsonl] [--only cores]

It needs Python 3.10, a driver, and CUDA's libraries: those of a PyTorch for CUDA are found by themselves, others by
LD_LIBRARY_PATH. Each item is a line of FOLDER/log.jsonl as soon as it has ended. An item that fails, dies or hangs does
not end the others. What has no time is left out. Another run with `--previous` leaves out what ended well, so several
short visits of a machine do as one long one.
"""

import argparse
import glob
import importlib.util
import lzma
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import checks
from journal import Journal, ended_well
from runner import Runner, answers

TESTS_AT_A_TIME = 8
# NVIDIA's checker is slow.
MOST_MEMCHECKS = 4


def libraries():
    """Folders of CUDA's libraries in Python's packages."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations) if spec else []
    return [folder for root in roots for folder in sorted(glob.glob(f"{root}/*/lib"))]


def environment(kernels):
    """The variables of all programs."""
    paths = libraries() + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    variables = {"REQUIRE_GPUS": "1", "RUST_BACKTRACE": "1", "CANDELABRUM_KERNEL_CACHE": str(kernels)}
    variables["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    # Several ranks on one GPU, for correctness.
    variables |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    return os.environ | variables | {"NCCL_MNNVL_ENABLE": "0", "NCCL_MAX_CTAS": "2"}


def unpack(folder):
    """The programs of the bundle, ready to run."""
    folder.mkdir()

    def one(file):
        program = folder / file.stem
        with lzma.open(file) as source, open(program, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        program.chmod(0o755)

    with ThreadPoolExecutor(TESTS_AT_A_TIME) as pool:
        list(pool.map(one, sorted((checks.HERE / "programs").glob("*.xz"))))
    return folder


def check(runner, journal, out, programs):
    """Everything, the most telling first. Nothing else is on the GPU while something is measured."""
    for ended in runner.all(checks.facts(), at_a_time=8):
        # A library that ends the process leaves the lines before it.
        if ended and (found := answers(ended[1].get("output", ""))):
            journal.versions = found[-1]
    lists = filter(None, runner.all(checks.lists(programs)))
    listed = [test for ended in lists for test in ended[1].get("tests", [])]
    singles, ranks = checks.tests(programs, listed)
    ends = zip(singles, runner.all(singles, TESTS_AT_A_TIME))
    failed = [one for one, ended in ends if ended and ended[0] != "ok" and "cuda_error" in ended[1]]
    runner.all(map(checks.memcheck, failed[:MOST_MEMCHECKS]))
    runner.one(checks.all_reduces(programs, out))
    runner.all(ranks)
    runner.all(checks.runs(programs, runner.work))
    runner.all(checks.memory(programs, runner.work))
    runner.all(checks.speeds(programs))
    runner.all(checks.cores(programs, len(os.sched_getaffinity(0))))
    runner.all(checks.kernel_times(programs, out))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for the results")
    parser.add_argument("--seconds", type=float, default=3600, help="the time of the run")
    parser.add_argument("--previous", type=pathlib.Path, help="the log of an earlier run")
    parser.add_argument("--only", default="", help="the first word of the checks that run, such as cores")
    parser.add_argument("--programs", type=pathlib.Path, help="a folder with unpacked programs")
    parser.add_argument("--scale", type=float, default=1.0, help="a factor of all limits")
    args = parser.parse_args()
    ended = ended_well(args.previous) if args.previous else ()
    # Whole runs are compared with each other, so they are repeated together.
    ended = {name for name in ended if not name.startswith(("fact", "list", "run"))}
    journal = Journal(args.out)
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as work:
        work = pathlib.Path(work)
        # Programs accept compiled kernels in a folder of their own user, in which nobody else can write.
        kernels = work / "kernels"
        kernels.mkdir(mode=0o700)
        carried = [shutil.copy(file, kernels) for file in (checks.HERE / "kernels").glob("*")]
        runner = Runner(journal, environment(kernels), work, (args.seconds, args.scale), ended, args.only)
        # It ends with what it has.
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda *_: runner.stopped.set())
        built = checks.HERE / "BUILT"
        commit = built.read_text().strip() if built.exists() else "not known"
        journal.write("bundle", "ok", built=commit, libraries=libraries())
        check(runner, journal, args.out, args.programs or unpack(work / "programs"))
        counts = {"carried": len(carried), "compiled_here": len(list(kernels.iterdir())) - len(carried)}
        journal.write("kernels", "ok", **counts)
    journal.close()


if __name__ == "__main__":
    sys.exit(main())
