"""The PyTorch side of `cargo xtask bench operation`: one operation, forward and backward.

It speaks the protocol of `bench-player operation` (benches/player/src/operation.rs), which says what is counted.
"""

import argparse
import json
import platform
import sys
import time

import torch
from torch.nn import functional as F

from bench_step import say

PASSES = {
    "gelu": F.gelu,
    "layer-norm": lambda xs, *weights: F.layer_norm(xs, xs.shape[1:], *weights),
    "linear": F.linear,
    "relu": F.relu,
    "silu": F.silu,
    "softmax": lambda xs: F.softmax(xs, 1),
}


class Case:
    """An operation with its inputs."""

    def __init__(self, text, precision):
        name, sizes = text.split(":")
        rows, columns, *outputs = map(int, sizes.split("x"))
        shapes = [(rows, columns), *((count, columns) for count in outputs)]
        if name == "layer-norm":
            shapes += [(columns,), (columns,)]
        self.forward = PASSES[name]
        self.inputs = [(2 * torch.rand(shape) - 1).requires_grad_() for shape in shapes]
        # Three products with an addition for each multiplication, or the bytes of five tensors.
        self.work = 6 * rows * columns * outputs[0] if outputs else 20 * rows * columns
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with self.autocast:
            self.gradient = torch.ones_like(self.forward(*self.inputs))
        self.step_seconds = min(self.measure(1) for _ in range(2))

    def measure(self, steps):
        """Seconds of a step."""
        start = time.perf_counter()
        for _ in range(steps):
            with self.autocast:
                output = self.forward(*self.inputs)
            torch.autograd.grad(output, self.inputs, self.gradient)
        return (time.perf_counter() - start) / steps

    def sample(self, seconds):
        steps = max(1, round(seconds / self.step_seconds))
        cpu = time.process_time()
        self.step_seconds = self.measure(steps)
        return {
            "steps": steps,
            "seconds": steps * self.step_seconds,
            "cpu_seconds": time.process_time() - cpu,
            "step_seconds": self.step_seconds,
            "speed": self.work / self.step_seconds,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    version = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    say("ready", ranks=1, backend="single", version=version)
    text, case = None, None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["operation"] != text:
            text, case = asked["operation"], Case(asked["operation"], args.precision)
        say("sample", **case.sample(asked["seconds"]))
    say("done")


if __name__ == "__main__":
    main()
