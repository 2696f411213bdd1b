"""Rehearses run.py with stand-ins for its programs, some of which fail, hang, die or print without end.

`cargo xtask ci` runs it. Nothing here says how fast anything is, and the limits are wide: what hangs would hang for an
hour.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
# A real limit of 40 seconds is 10 here.
SCALE = 0.25

GPU = """
import os, signal, sys, time
TESTS = ["memory::good", "memory::hangs", "memory::dies", "memory::misaligned", "ranks::every_strategy",
         "ranks::strategies_main", "announced::prints"]
if "--list" in sys.argv:
    print("\\n".join(f"{name}: test" for name in TESTS))
    sys.exit()
name = sys.argv[1]
assert sys.argv[2:] == ["--exact", "--nocapture", "--test-threads=1"]
print("running 1 test", flush=True)
if name.endswith("hangs"):
    # A program that is started leaves a child that would hang on.
    if os.fork():
        print("waits", flush=True)
    time.sleep(3600)
if name.endswith("dies"):
    os.kill(os.getpid(), signal.SIGSEGV)
if name.endswith("misaligned"):
    print("cuLaunchKernel: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address")
    print("after it: CUDA_ERROR_LAUNCH_FAILED")
    print("thread 'test' panicked at tests/gpu/memory.rs:1:\\nassertion failed")
    print("   1: <unknown>\\n" * 1000)
    sys.exit(101)
while name.endswith("prints"):
    print("x" * 100_000)
print("test result: ok. 1 passed; 0 failed")
"""

OPS = """
import sys
print("composites::good: test" if "--list" in sys.argv else "test result: ok. 1 passed; 0 failed")
"""

CONFORMANCE = OPS.replace("composites::good", "nccl::over_nccl_a_killed_rank_is_named")

PLAYER = """
import json, os, sys
if "CANDELABRUM_RANK" in os.environ:
    assert os.environ["CANDELABRUM_DEVICE"] == "cpu"
    if os.environ["CANDELABRUM_RANK"] != "0":
        sys.exit()
else:
    assert os.environ["CANDELABRUM_DEVICE"] == "cuda"
if "cnn" in sys.argv and "--graph" in sys.argv:
    print("no memory: CUDA_ERROR_OUT_OF_MEMORY: out of memory", file=sys.stderr)
    sys.exit(3)
print(json.dumps({"event": "ready", "warm_up_losses": [2.0, 1.0]}), flush=True)
for line in sys.stdin:
    print("a warning in the wrong place", flush=True)
    print(json.dumps({"event": "sample", "steps": 10, "seconds": json.loads(line).get("seconds", 0.01)}), flush=True)
"""

MNIST = """
import json, sys
report = sys.argv[sys.argv.index("--report") + 1]
digest = ["other"] if "--graph" in sys.argv and "--shard" in sys.argv else ["digest"]
with open(report, "w") as file:
    json.dump({"epochs": [{"eval_accuracy": 0.9}], "parameters_sha256": digest}, file)
"""

CHECKER = """
import sys
print("ordinary output")
for number in range(100):
    print(f"========= line {number}")
sys.exit(86)
"""

PROFILER = """
import subprocess, sys
at = sys.argv.index("--log-file")
open(sys.argv[at + 1], "w").write("kernel,time\\n")
sys.exit(subprocess.run(sys.argv[at + 2:]).returncode)
"""

# The memory in use on the GPU.
SMI = "print(1000)"

NO_TIME = "left out: no time"


class Bundle:
    """A folder as `cargo xtask gpu-bundle` makes it, with stand-ins."""

    def __init__(self, folder):
        self.folder, self.programs = folder / "bundle", folder / "programs"
        self.tools, self.modules = folder / "tools", folder / "modules"
        for made in (self.folder, self.programs, self.tools, self.modules / "torch"):
            made.mkdir(parents=True)
        for script in HERE.glob("*.py"):
            shutil.copy(script, self.folder)
        (self.folder / "BUILT").write_text("a commit\n")
        kernels = self.folder / "kernels"
        kernels.mkdir()
        (kernels / "carried").write_bytes(b"an image")
        kernels.chmod(0o777)
        (self.folder / "bench_step.py").write_text(PLAYER)
        (self.modules / "torch/__init__.py").write_text("")
        programs = {"gpu": GPU, "ops": OPS, "conformance": CONFORMANCE, "bench-player": PLAYER, "mnist_dist": MNIST}
        tools = {"compute-sanitizer": CHECKER, "ncu": PROFILER, "nvidia-smi": SMI}
        for made, texts in ((self.programs, programs), (self.tools, tools)):
            for name, text in texts.items():
                (made / name).write_text(f"#!{sys.executable} -S\n{text}")
                (made / name).chmod(0o755)

    def start(self, out, seconds, *options):
        variables = dict(os.environ, PYTHONPATH=str(self.modules), TMPDIR=str(out.parent))
        variables["PATH"] = f"{self.tools}:{variables['PATH']}"
        command = [sys.executable, self.folder / "run.py", "--out", out, "--seconds", seconds, "--scale", SCALE]
        return subprocess.Popen(
            [str(word) for word in [*command, "--programs", self.programs, *options]], env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


# An earlier log, cut off.
EARLIER = [
    {"name": "test gpu memory::good", "status": "ok"},
    {"name": "test gpu memory::dies", "status": "signal 11"},
    {"name": "speed gpt 8 ours f32", "status": "ok"},
    {"name": "ranks gpu ranks::every_strategy", "status": NO_TIME},
]


class Rehearsal(unittest.TestCase):
    """All runs start together, since most of their time is waits."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rehearsal-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        bundle, start = Bundle(cls.folder), time.monotonic()
        earlier = cls.folder / "log.jsonl"
        earlier.write_text("\n".join(map(json.dumps, EARLIER)) + "\nhalf a li")
        cls.runs = {
            "whole": bundle.start(cls.folder / "whole", 600),
            "again": bundle.start(cls.folder / "again", 600, "--previous", earlier),
            "short": bundle.start(cls.folder / "short", 0),
            "stopped": bundle.start(cls.folder / "stopped", 600),
            "cores": bundle.start(cls.folder / "cores", 600, "--only", "cores"),
        }
        for process in cls.runs.values():
            cls.addClassCleanup(process.kill)
        while "list gpu" not in cls.items("stopped") and time.monotonic() < start + 60:
            time.sleep(0.05)
        cls.runs["stopped"].send_signal(signal.SIGTERM)
        cls.screens = {name: process.communicate(timeout=300)[0] for name, process in cls.runs.items()}

    @classmethod
    def items(cls, run):
        """The log of a run by the names of its items. The last line may be half written."""
        path = cls.folder / run / "log.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return {item["name"]: item for item in map(json.loads, lines)}

    def check(self, run, expected):
        """Compares the statuses of items with the expected ones."""
        items = self.items(run)
        got = {name: items.get(name, {}).get("status") for name in expected}
        self.assertEqual(got, expected, self.screens[run])
        self.assertEqual(self.runs[run].returncode, 0, self.screens[run])
        return items

    def test_every_check_keeps_its_limit_and_ends_no_other(self):
        expected = {
            "bundle": "ok",
            "fact versions": "ok",
            "fact system": "ok",
            "test gpu memory::good": "ok",
            "test gpu memory::hangs": "timeout",
            "test gpu memory::dies": "signal 11",
            "test gpu memory::misaligned": "failed",
            "memcheck test gpu memory::misaligned": "failed",
            "test ops composites::good": "ok",
            "seconds of all-reduces": "ok",
            "ranks gpu ranks::every_strategy": "ok",
            "ranks gpu announced::prints": "failed",
            "ranks conformance nccl::over_nccl_a_killed_rank_is_named": "ok",
            "run digits, graphs": "ok",
            "run sharded state": "ok",
            "run sharded state, graphs": "failed: not the parameters of 'nothing sharded'",
            "run continued by one rank": "ok",
            "memory --precision bf16 --recompute half --graph": "ok",
            "speed resnet18 512 ours tf32 graph": "ok",
            "speed cnn 64 ours f32 graph": "failed",
            "speed gpt 8 pytorch tf32 compile": "ok",
            "kernel times resnet18 512": "ok",
            "kernels": "ok",
        }
        items = self.check("whole", expected)
        misaligned = items["test gpu memory::misaligned"]
        self.assertIn("CUDA_ERROR_MISALIGNED_ADDRESS", misaligned["cuda_error"])
        self.assertIn("after it", misaligned["cuda_error_lines"])
        self.assertEqual(misaligned["environment"]["REQUIRE_GPUS"], "1")
        self.assertIn("python", misaligned["versions"])
        self.assertEqual(misaligned["exit"], 101)
        self.assertIn("assertion failed", misaligned["panic"])
        memcheck = items["memcheck test gpu memory::misaligned"]["memcheck"]
        self.assertEqual(len(memcheck.splitlines()), 30)
        self.assertIn("waits", items["test gpu memory::hangs"]["tail"])
        self.assertTrue(items["test gpu memory::hangs"]["threads"])
        memory = items["memory --precision bf16 --recompute half --graph"]
        self.assertEqual((memory["mib"], memory["examples_per_second"]), (0, 16_000))
        graph = items["speed cnn 64 ours f32 graph"]
        self.assertEqual((graph["exit"], "OUT_OF_MEMORY" in graph["cuda_error"]), (3, True))
        speed = items["speed resnet18 512 ours f32"]
        self.assertEqual((speed["images_per_second"], speed["losses"]), (12_800, [[2.0, 1.0]]))
        self.assertTrue((self.folder / "whole/kernels-resnet18-512.csv").exists())
        self.assertEqual((items["kernels"]["carried"], items["kernels"]["compiled_here"]), (1, 0))
        # Nothing is left: no process, and no folder.
        self.assertEqual(list(self.folder.glob("gpu-check-*")), [])
        self.assertEqual([name for name in commands() if str(self.folder) in name], [])

    def test_another_run_leaves_out_what_ended_well(self):
        expected = {
            "test gpu memory::good": None,
            "test gpu memory::dies": "signal 11",
            "speed gpt 8 ours f32": None,
            "ranks gpu ranks::every_strategy": "ok",
        }
        self.check("again", expected)

    def test_the_speeds_of_cores_need_no_gpu(self):
        items = self.check("cores", {"cores cnn 64 ranks 1 threads 1": "ok", "test gpu memory::good": None})
        self.assertEqual(items["cores gpt 8 ranks 1 threads 1"]["images_per_second"], 200)
        if len(os.sched_getaffinity(0)) > 1:
            two = items["cores cnn 64 ranks 2 threads 1"]
            self.assertEqual((two["images_per_second"], two["of_strangers"], two["times_one"]), (3_200, 1, 2))

    def test_what_has_no_time_is_left_out(self):
        self.check("short", {"fact system": NO_TIME, "speed gpt 8 pytorch f32": NO_TIME, "kernels": "ok"})

    def test_a_signal_ends_it_with_what_it_has(self):
        self.check("stopped", {"list gpu": "ok", "speed gpt 8 ours f32": NO_TIME, "kernels": "ok"})


def commands():
    """The command lines of all other processes."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(folder.name) != os.getpid():
            yield command


if __name__ == "__main__":
    unittest.main(verbosity=2)
