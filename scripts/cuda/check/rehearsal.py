"""Rehearses run.py with stand-ins for its programs, some of which fail, hang, die or print without end.

`cargo xtask ci` runs it on the software GPU, where the real probe takes part. Nothing here says how fast
anything is, and the limits are wide: what hangs would hang for an hour.
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
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
# A real limit of 25 seconds is 4 here.
SCALE = 0.16

GPU = """
import os, signal, sys, time
TESTS = ["memory::good", "memory::hangs", "memory::fails", "memory::dies", "memory::misaligned",
         "memory::another", "ranks::every_strategy", "ranks::strategies_main", "announced::hangs"]
if "--list" in sys.argv:
    print("\\n".join(f"{name}: test" for name in TESTS))
    sys.exit()
name = sys.argv[1]
assert sys.argv[2:] == ["--exact", "--nocapture", "--test-threads=1"]
print(f"running 1 test, RUST_BACKTRACE={os.environ['RUST_BACKTRACE']}", flush=True)
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
if name.endswith(("fails", "misaligned")):
    print("thread 'test' panicked at tests/gpu/memory.rs:1:\\nassertion failed")
    print("   1: <unknown>\\n" * 1000)
    sys.exit(101)
print("test result: ok. 1 passed; 0 failed")
"""

OPS = """
import sys
if "--list" in sys.argv:
    print("composites::good: test")
else:
    print("test result: ok. 1 passed; 0 failed")
"""

CONFORMANCE = OPS.replace("composites::good", "nccl::over_nccl_a_killed_rank_is_named")

PLAYER = """
import json, os, signal, sys, time
if "--help" in sys.argv:
    print("--precision f32 bf16 tf32")
    sys.exit()
assert os.environ["CANDELABRUM_DEVICE"] == "cuda"
value = dict(zip(sys.argv, sys.argv[1:]))
way = (value["--network"], value["--precision"], "--graph" in sys.argv)
if way == ("cnn", "f32", True):
    print("no memory: CUDA_ERROR_OUT_OF_MEMORY: out of memory", file=sys.stderr)
    sys.exit(3)
if way == ("cnn", "bf16", False):
    time.sleep(3600)
if way == ("cnn", "bf16", True):
    for _ in range(4000):
        print("x" * 1000, file=sys.stderr)
    print("a warning in the wrong place", flush=True)
if way == ("cnn", "tf32", True):
    print("this is no JSON", flush=True)
    time.sleep(3600)
print(json.dumps({"event": "ready", "warm_up_losses": [2.0, 1.0]}), flush=True)
for line in sys.stdin:
    if way == ("cnn", "tf32", False):
        os.kill(os.getpid(), signal.SIGSEGV)
    seconds = json.loads(line).get("seconds", 0.01)
    if way[0] == "resnet18" and value["--batch-size"] == "512" and way[1:] == ("bf16", True):
        time.sleep(3600)
    print(json.dumps({"event": "sample", "steps": 10, "seconds": seconds}), flush=True)
"""

PROBE = """
import os, signal, sys, time
CONTRACTS = ["holds", "crashes", "hangs", "holds too", "costs"]
if len(sys.argv) == 1:
    print("\\n".join(CONTRACTS))
elif sys.argv[1] == "crashes":
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"
    os.kill(os.getpid(), signal.SIGSEGV)
elif sys.argv[1] == "hangs":
    time.sleep(3600)
else:
    print('{"cost": "of a launch", "us": 2.5}')
    print('{"holds": true}')
"""

MNIST = """
import json, sys
report = sys.argv[sys.argv.index("--report") + 1]
epoch = {"eval_accuracy": 0.9, "strategy": {"replayed_steps": 3}}
digest = ["a"] if "--graph" in sys.argv else ["b"]
with open(report, "w") as file:
    json.dump({"epochs": [epoch], "parameters_sha256": digest}, file)
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
table = sys.argv[sys.argv.index("--log-file") + 1]
open(table, "w").write("kernel,time\\n")
sys.exit(subprocess.run(sys.argv[sys.argv.index("--log-file") + 2:]).returncode)
"""


# The memory in use on the GPU.
SMI = "print(1000)"


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
        kernels.mkdir(mode=0o755)
        (kernels / "carried").write_bytes(b"an image")
        kernels.chmod(0o777)
        # PyTorch's contenders do as ours, and none of the mistakes.
        player = PLAYER.replace("value[\"--precision\"]", "'torch'")
        player = player.replace("assert os.environ[\"CANDELABRUM_DEVICE\"] == \"cuda\"", "")
        (self.folder / "bench_step.py").write_text(player)
        (self.modules / "torch/__init__.py").write_text("def zeros(n): pass\n")
        stand_ins = {
            "gpu": GPU, "ops": OPS, "conformance": CONFORMANCE, "bench-player": PLAYER,
            "gpu_probe": PROBE, "mnist_dist": MNIST,
        }  # fmt: skip
        for name, text in stand_ins.items():
            self.program(self.programs / name, text)
        self.program(self.tools / "compute-sanitizer", CHECKER)
        self.program(self.tools / "ncu", PROFILER)
        self.program(self.tools / "nvidia-smi", SMI)

    @staticmethod
    def program(path, text):
        path.write_text(f"#!{sys.executable} -S\n{text}")
        path.chmod(0o755)

    def start(self, part, out, seconds, *options):
        variables = dict(os.environ, PYTHONPATH=str(self.modules), TMPDIR=str(out.parent))
        variables["PATH"] = f"{self.tools}:{variables['PATH']}"
        command = [sys.executable, self.folder / "run.py", "--part", part, "--out", out]
        command += ["--seconds", seconds, "--scale", SCALE, "--programs", self.programs]
        return subprocess.Popen(
            [str(word) for word in [*command, *options]], env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


# The log of part a, cut off.
EARLIER = [
    {"name": "test gpu memory::good", "status": "ok"},
    {"name": "test gpu memory::dies", "status": "signal 11"},
    {"name": "probe crashes", "status": "signal 11"},
    {"name": "test gpu memory::another", "status": "left out: no time"},
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
        runs = {
            "a": bundle.start("a", cls.folder / "a", 38),
            "b": bundle.start("b", cls.folder / "b", 60, "--previous", earlier),
            "short": bundle.start("a", cls.folder / "short", 5),
            "stopped": bundle.start("a", cls.folder / "stopped", 60),
        }
        for process in runs.values():
            cls.addClassCleanup(process.kill)
        while "probe crashes" not in cls.items("stopped") and time.monotonic() < start + 60:
            time.sleep(0.05)
        runs["stopped"].send_signal(signal.SIGTERM)
        cls.screens, cls.seconds, cls.codes = {}, {}, {}
        for name in ("stopped", "short", "a", "b"):
            cls.screens[name] = runs[name].communicate(timeout=120)[0]
            cls.seconds[name] = time.monotonic() - start
            cls.codes[name] = runs[name].returncode

    @classmethod
    def items(cls, run):
        """The log of a run by the names of its items. The last line may be under way."""
        found, path = {}, cls.folder / run / "log.jsonl"
        for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []:
            item = json.loads(line)
            found[item["name"]] = item
        return found

    def check(self, run, expected):
        """Compares the statuses of items with the expected ones."""
        items = self.items(run)
        got = {name: items.get(name, {}).get("status") for name in expected}
        self.assertEqual(got, expected, self.screens[run])
        self.assertEqual(self.codes[run], 0, self.screens[run])
        return items

    def test_part_a_keeps_its_limits_and_goes_on(self):
        self.assertLess(self.seconds["a"], 80, self.screens["a"])
        expected = {
            "bundle": "ok",
            "fact versions": "ok",
            "probe holds": "ok",
            "probe crashes": "signal 11",
            "probe hangs": "timeout",
            "probe holds too": "ok",
            "probe costs": "ok",
            "speed cnn 64 ours f32": "ok",
            "speed cnn 64 ours f32 graph": "failed",
            "speed cnn 64 ours bf16": "timeout",
            "speed cnn 64 ours bf16 graph": "ok",
            "speed cnn 64 ours tf32": "signal 11",
            "speed cnn 64 ours tf32 graph": "timeout",
            "speed resnet18 512 ours f32": "ok",
            "speed resnet18 512 ours bf16 graph": "timeout",
            "speed gpt 8 ours f32": "ok",
            "speed gpt 8 pytorch tf32": "ok",
            "kernel times resnet18 512": "ok",
            "test gpu memory::good": "ok",
            "test gpu memory::hangs": "timeout",
            "test gpu memory::fails": "failed",
            "test gpu memory::dies": "signal 11",
            "test gpu memory::misaligned": "failed",
            "memcheck gpu memory::misaligned": "failed",
            "test gpu memory::another": "ok",
            "test ops composites::good": "ok",
            "ranks gpu ranks::every_strategy": "ok",
            "ranks conformance nccl::over_nccl_a_killed_rank_is_named": "ok",
            "seconds of all-reduces": "ok",
            "ranks gpu announced::hangs": "timeout",
            "kernels": "ok",
        }
        items, out = self.check("a", expected), self.folder / "a"
        misaligned = items["test gpu memory::misaligned"]
        self.assertIn("CUDA_ERROR_MISALIGNED_ADDRESS", misaligned["cuda_error"])
        self.assertIn("after it", misaligned["cuda_error_lines"])
        self.assertEqual(misaligned["environment"]["REQUIRE_GPUS"], "1")
        self.assertIn("python", misaligned["versions"])
        self.assertEqual(misaligned["exit"], 101)
        self.assertIn("assertion failed", misaligned["panic"])
        memcheck = items["memcheck gpu memory::misaligned"]["memcheck"]
        self.assertEqual(len(memcheck.splitlines()), 30)
        self.assertIn("waits", items["test gpu memory::hangs"]["tail"])
        self.assertTrue(items["test gpu memory::hangs"]["threads"])
        graph = items["speed cnn 64 ours f32 graph"]
        self.assertEqual((graph["exit"], "OUT_OF_MEMORY" in graph["cuda_error"]), (3, True))
        self.assertGreater(items["speed cnn 64 ours f32"]["images_per_second"], 0)
        self.assertEqual(items["probe costs"]["found"], {"holds": True})
        self.assertIn("of a launch", items["probe costs"]["output"])
        self.assertTrue((out / "kernels-resnet18-512.csv").exists())
        self.assertTrue((out / "nccl.tar.gz").exists())
        self.assertEqual(items["kernels"]["carried"], 1)
        # Nothing is left: no process, and no folder.
        self.assertEqual(list(self.folder.glob("gpu-check-*")), [])
        left = [name for name in commands() if str(self.folder) in name]
        self.assertEqual(left, [])

    def test_part_b_repeats_what_failed(self):
        # The last test of several ranks uses up the time of its part, not that of the others.
        expected = {
            "probe crashes": "signal 11",
            "probe holds": None,
            "test gpu memory::dies": "signal 11",
            "test gpu memory::good": None,
            "test gpu memory::another": None,
            "ranks gpu ranks::every_strategy": "ok",
            "ranks gpu announced::hangs": "timeout",
            "compile ahead resnet18 512 pytorch tf32 compile": "ok",
            "accuracy": "ok",
            "accuracy --graph": "ok",
            "accuracy: one digest": "failed",
            "run nothing shared": "ok",
            "run continued by one rank": "ok",
            "memory bf16 recompute half --graph": "ok",
            "speed resnet18 512 ours f32": "ok",
            "speed resnet18 512 pytorch tf32 compile": "ok",
            "speed gpt 8 ours f32": "ok",
        }
        self.check("b", expected)

    def test_what_has_no_time_is_left_out(self):
        no_time = "left out: no time"
        expected = {"probe holds": "ok", "speed gpt 8 pytorch f32": no_time, "kernels": "ok"}
        self.check("short", expected)

    def test_a_signal_ends_it_with_what_it_has(self):
        self.assertLess(self.seconds["stopped"], 55, self.screens["stopped"])
        self.check("stopped", {"probe crashes": "signal 11", "kernels": "ok"})

    def test_the_probe_answers_on_the_software_gpu(self):
        program = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ".")) / "debug/examples/gpu_probe"
        if "SOFTGPU_HOME" not in os.environ:
            self.skipTest("not in the environment of the software GPU")
        names = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        names = names.splitlines()
        self.assertGreater(len(names), 20)
        with tempfile.TemporaryDirectory() as kernels:
            variables = dict(os.environ, CANDELABRUM_KERNEL_CACHE=kernels)

            def holds(name, **more):
                done = subprocess.run(
                    [program, name, kernels], env=variables | more, capture_output=True, text=True,
                    timeout=100,
                )  # fmt: skip
                answer = json.loads(done.stdout.splitlines()[-1])
                self.assertEqual(done.returncode, 0 if answer["holds"] else 1, done.stderr)
                return answer["holds"]

            with ThreadPoolExecutor(4) as pool:
                answers = dict(zip(names, pool.map(holds, names)))
            self.assertEqual([name for name in names if not answers[name]], [])
            # What a GPU may do, and this project does not want.
            self.assertFalse(holds("nothing captured", SOFTGPU_STRICT="1"))
            # The kernel of the first time is there.
            self.assertFalse(holds("kernel cache"))


def commands():
    """The command lines of all processes."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(folder.name) != os.getpid():
            yield command


if __name__ == "__main__":
    unittest.main(verbosity=2)
