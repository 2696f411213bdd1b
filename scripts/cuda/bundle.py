#!/usr/bin/env python3
"""Runs a bundle of `cargo xtask gpu-bundle` on a machine with a GPU and writes one JSON file.

    python3 run.py [--out result.json] [--minutes 9]

It needs Python 3, a driver, and CUDA's libraries: those of a PyTorch for CUDA are found by
themselves, others by LD_LIBRARY_PATH. Every part has a time limit, and a part that fails does not
end the others. The file has the machine, the outcome of the tests, the accuracy on synthetic digits,
and the steps per second beside PyTorch's where PyTorch is installed.
"""

import argparse
import glob
import gzip
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
NETWORKS = [
    ("cnn", 64, "f32"), ("cnn", 1024, "f32"), ("mlp", 64, "f32"), ("gru", 64, "f32"),
    ("resnet18", 64, "f32"), ("resnet18", 512, "f32"), ("cnn", 1024, "bf16"), ("resnet18", 512, "bf16"),
]  # fmt: skip
ROUNDS = 5
SECONDS = 0.4


def unpack():
    for packed in sorted(PROGRAMS.glob("*.gz")):
        program = packed.with_suffix("")
        with gzip.open(packed) as source, open(program, "wb") as target:
            shutil.copyfileobj(source, target)
        program.chmod(0o755)


def libraries():
    """Folders of CUDA's libraries in Python's packages."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations) if spec else []
    return [folder for root in roots for folder in sorted(glob.glob(f"{root}/*/lib"))]


def environment():
    variables = dict(os.environ, REQUIRE_GPUS="1", RUST_BACKTRACE="0")
    # Compiled ahead of time for an H200. A library of another version compiles them again.
    kernels = HERE / "kernels"
    if kernels.exists():
        kernels.chmod(0o700)
        variables["CANDELABRUM_KERNEL_CACHE"] = str(kernels)
    paths = libraries() + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    variables["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    # Several ranks on one GPU, for correctness.
    variables.update(
        NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", NCCL_NVLS_ENABLE="0",
        NCCL_MNNVL_ENABLE="0", NCCL_MAX_CTAS="2",
    )
    return variables


def output(command, limit=60):
    """What a command prints, or the reason why it prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        return (done.stdout or done.stderr).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}"


class Bundle:
    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes
        self.variables = environment()

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, most):
        """The exit code (None at the time limit), what was printed, and the seconds."""
        limit, start = min(most, self.left()), time.monotonic()
        if limit <= 1:
            return None, "no time was left", 0.0
        try:
            done = subprocess.run(
                [str(word) for word in command], env=self.variables, text=True, timeout=limit,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            text = error.stdout or b""
            code, text = None, text.decode(errors="replace") if isinstance(text, bytes) else text
        return code, text, round(time.monotonic() - start, 1)

    def tests(self, program, filters, most):
        command = [PROGRAMS / program, *filters, "--test-threads=4"]
        code, text, seconds = self.run(command, most)
        found = re.findall(r"test result: .*? (\d+) passed; (\d+) failed", text)
        passed, failed = (sum(int(pair[i]) for pair in found) for i in (0, 1))
        names = re.findall(r"^test (\S+) \.\.\. FAILED", text, re.MULTILINE)
        report = {"passed": passed, "failed": failed, "seconds": seconds, "exit": code}
        if code != 0:
            report["failures"], report["tail"] = names, text[-6000:]
        return report

    def accuracy(self, options, most):
        path = HERE / "accuracy.json"
        path.unlink(missing_ok=True)
        command = [PROGRAMS / "mnist_dist", "--device", "cuda", "--dataset", "synthetic"]
        command += ["--epochs", "3", "--report", path, *options]
        code, text, seconds = self.run(command, most)
        if code != 0:
            return {"exit": code, "seconds": seconds, "tail": text[-3000:]}
        report = json.loads(path.read_text())
        keep = ["eval_accuracy", "train_loss", "images_per_second"]
        epochs = [
            {key: epoch[key] for key in keep}
            | {"replayed_steps": epoch["strategy"]["replayed_steps"]}
            for epoch in report["epochs"]
        ]
        digest = report["parameters_sha256"][0]
        result = {"device": report["device"], "seconds": seconds, "epochs": epochs}
        return {**result, "parameters_sha256": digest}

    def contenders(self, network, batch, precision):
        common = ["--network", network, "--batch-size", str(batch), "--threads", "4"]
        common += ["--warm-up", "20", "--precision", precision]
        ours = [PROGRAMS / "bench-player", "train", "--contender", "ours", *common]
        yield "ours", ours
        yield "ours-cuda-graphs", [*ours, "--graph"]
        if importlib.util.find_spec("torch"):
            for name in ["pytorch", "pytorch-compile", "pytorch-cuda-graphs"]:
                script = [sys.executable, HERE / "bench_step.py", "--device", "cuda"]
                yield name, [*script, "--contender", name, *common]

    def speed(self, network, batch, precision):
        """Images per second of each contender: the median of samples taken in turns."""
        running, result = {}, {}
        variables = dict(self.variables, CANDELABRUM_DEVICE="cuda")
        for name, command in self.contenders(network, batch, precision):
            process = subprocess.Popen(
                [str(word) for word in command], env=variables, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            line = process.stdout.readline()
            if line:
                running[name] = process
                result[name] = {"losses": json.loads(line)["warm_up_losses"][:5], "samples": []}
            else:
                result[name] = {"error": process.stderr.read()[-1500:]}
        for _ in range(ROUNDS):
            for name, process in running.items():
                if self.left() < 5:
                    break
                process.stdin.write(json.dumps({"seconds": SECONDS}) + "\n")
                process.stdin.flush()
                sample = json.loads(process.stdout.readline())
                result[name]["samples"].append(sample["steps"] * batch / sample["seconds"])
        for process in running.values():
            process.stdin.close()
            process.terminate()
        for entry in result.values():
            if entry.get("samples"):
                ordered = sorted(entry["samples"])
                entry["images_per_second"] = ordered[len(ordered) // 2]
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="result.json")
    parser.add_argument("--minutes", type=float, default=9.0)
    args = parser.parse_args()
    unpack()
    bundle, report = Bundle(args.minutes), {}

    def write(key, value):
        report[key] = value
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
        print(key, json.dumps(value)[:400], flush=True)

    query = "--query-gpu=name,driver_version,memory.total"
    write("gpu", output(["nvidia-smi", query, "--format=csv,noheader"]))
    write("built", (HERE / "BUILT").read_text().strip())
    write("libraries", libraries())
    write("torch", output([sys.executable, "-c", "import torch; print(torch.__version__)"]))
    write("memory, optimizers, models", bundle.tests("gpu", [], 150))
    write("operations", bundle.tests("ops", ["composites", "on_a_gpu"], 120))
    write("nccl", bundle.tests("conformance", ["nccl"], 150))
    # With CUDA graphs the digest must be the same.
    write("accuracy", bundle.accuracy([], 60))
    write("accuracy, CUDA graphs", bundle.accuracy(["--graph"], 60))
    for network, batch, precision in NETWORKS:
        write(f"{network} {batch} {precision}", bundle.speed(network, batch, precision))


if __name__ == "__main__":
    main()
