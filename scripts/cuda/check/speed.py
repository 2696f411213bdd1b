"""Training steps per second: ours, and PyTorch's where it is installed.

A contender is a program that prints a line of JSON when it is ready and answers each request by a
sample (benches/player/src/serve.rs). All contenders of a group start together and warm up. Then each
takes a sample in turn while the others wait for their next line, and the median counts.
"""

import json
import statistics
import sys
import time

from machine import HERE, has_torch
from runner import NO_TIME, Child, last_json, run

SECONDS = 0.4
# For the start of a program, its libraries and its warm-up.
READY = 30
READY_COMPILED = 75
# The most that a group's starts may take of the time that is left to it.
START_SHARE = 0.6


def ours(programs, network, batch, way):
    """The command of our program. `way` names the precision, and whether graphs are replayed."""
    command = [programs / "bench-player", "train", "--contender", "ours"]
    words = way.split()
    precision = next((word for word in words if word in ("tf32", "bf16")), "f32")
    options = ["--precision", precision] + (["--graph"] if "graph" in words else [])
    return [*command, *common(network, batch), *options]


def pytorch(network, batch, way):
    command = [sys.executable, HERE / "bench_step.py", "--device", "cuda"]
    words = way.split()
    kind = next((word for word in words if word in ("compile", "graphs")), None)
    kind = {"compile": "pytorch-compile", "graphs": "pytorch-cuda-graphs", None: "pytorch"}[kind]
    precision = "bf16" if "bf16" in words else "f32"
    options = ["--contender", kind, "--precision", precision]
    return [*command, *common(network, batch), *options, *(["--tf32"] if "tf32" in words else [])]


def common(network, batch):
    options = ["--network", network, "--batch-size", batch, "--threads", 4, "--warm-up", 20]
    return list(map(str, options))


class Contender:
    def __init__(self, name, command, batch, variables, limit):
        self.name, self.batch, self.samples, self.limit = name, batch, [], limit
        self.losses, self.why, self.noise, self.broke = None, None, None, False
        try:
            self.child = Child(command, variables, talks=True)
        except OSError as error:
            self.child, self.why = None, str(error)

    def answer(self, seconds):
        """Its next answer; None if there is none in this time. What is no answer is passed over."""
        end = time.monotonic() + seconds
        while True:
            line = self.child.line(end - time.monotonic())
            if line is None:
                self.broke = True
                # A program that dies may close its output a moment before it is gone.
                self.child.ends_within(2)
                return None
            if answer := last_json(line):
                return answer
            self.noise = line[:200]

    def gets_ready(self):
        """Whether it has said that it is ready. None as long as it has not."""
        if self.child is None:
            return False
        while not self.child.lines.empty():
            line = self.child.line(1)
            if line is None:
                self.broke = True
                self.child.ends_within(2)
                return False
            if answer := last_json(line):
                self.losses = answer.get("warm_up_losses", [])[:5]
                return True
            self.noise = line[:200]
        return None

    def sample(self, seconds):
        self.child.say(json.dumps({"seconds": SECONDS}))
        answer = self.answer(seconds)
        try:
            self.samples.append(answer["steps"] / answer["seconds"])
            return True
        except (TypeError, KeyError, ZeroDivisionError):
            self.broke = True
            return False

    def end(self):
        """Ends the program, and says how it was."""
        if self.child is None:
            return "failed", {"tail": self.why}
        child, good = self.child, bool(self.samples) and not self.broke
        runs = child.process.poll() is None
        status = "ok" if good else child.status()
        if not good and status == "ok":
            status = "failed"  # it ended without an error, but too early
        elif runs and not child.killed:
            status = "ok" if good else "failed" if self.broke else NO_TIME
        child.end()
        fields = {"exit": 0 if runs and good else child.process.returncode, "noise": self.noise}
        fields |= {"tail": child.output.text(400 if good else 2_000)}
        fields |= {"losses": self.losses, "steps_per_second": self.samples}
        fields |= child.output.marks()
        if child.threads:
            fields["threads"] = child.threads
        if self.samples:
            fields["images_per_second"] = statistics.median(self.samples) * self.batch
            fields["short"] = f"{fields['images_per_second']:.0f} per second"
        return status, fields


def measure(contenders, rounds, journal, clock, variables):
    """Measures a group of contenders, given as (name, command, batch, the longest start)."""
    variables = dict(variables, CANDELABRUM_DEVICE="cuda")
    running, begun = [], clock.passed()
    for name, command, batch, limit in contenders:
        # One that starts now must get ready and be measured.
        if clock.left() < 6 * min(clock.scale, 1):
            journal.write(f"speed {name}", NO_TIME, 0.0, variables)
            continue
        running.append(Contender(name, command, batch, variables, limit * clock.scale))

    def finish(contender):
        status, fields = contender.end()
        journal.write(f"speed {contender.name}", status, clock.passed() - begun, variables, **fields)

    # Whoever hangs at the start must not take the others' time.
    waiting, ready, share = running, [], START_SHARE * clock.left()
    while waiting:
        late = clock.passed() - begun
        for contender in list(waiting):
            is_ready = contender.gets_ready()
            if is_ready is None and late < min(contender.limit, share):
                continue
            waiting.remove(contender)
            if is_ready:
                ready.append(contender)
                continue
            if is_ready is None:
                contender.child.stop()
            finish(contender)
        time.sleep(0.01)
    for _ in range(rounds):
        for contender in list(ready):
            if clock.left() < 2 * SECONDS:
                break
            if not contender.sample(min(8 * clock.scale + SECONDS, clock.left())):
                ready.remove(contender)
                finish(contender)
    for contender in ready:
        finish(contender)


def knows_tf32(programs, clock, variables):
    """Whether our program can round products to TF32."""
    result = run([programs / "bench-player", "train", "--help"], 20, clock, variables)
    return "tf32" in result.whole()


def group(programs, network, batch, ours_ways, torch_ways):
    """The contenders of a network."""
    found = []
    for way in ours_ways:
        found.append((f"{network} {batch} ours {way}", ours(programs, network, batch, way), batch, READY))
    for way in torch_ways if has_torch() else []:
        limit = READY_COMPILED if "compile" in way or "graphs" in way else READY
        found.append((f"{network} {batch} pytorch {way}", pytorch(network, batch, way), batch, limit))
    return found


def kernel_times(programs, network, batch, out, journal, clock, variables):
    """The time of each kernel of two steps, by NVIDIA's profiler, as a table in the results."""
    table = out / f"kernels-{network}-{batch}.csv"
    step = ours(programs, network, batch, "f32")
    step[step.index("20")] = "1"
    # The request comes from a pipe, since the program reads it from its input.
    words = " ".join(f"'{word}'" for word in step)
    profile = "ncu --clock-control none --target-processes all --metrics gpu__time_duration.sum --csv"
    command = f"echo '{{\"steps\": 1}}' | {profile} --log-file '{table}' {words}"
    variables = dict(variables, CANDELABRUM_DEVICE="cuda")
    result = run(["sh", "-c", command], 30, clock, variables)
    size = table.stat().st_size if table.exists() else 0
    journal.result(f"kernel times {network} {batch}", result, variables, bytes=size)
