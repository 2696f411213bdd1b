"""The GPU memory of training, as the driver counts it, with and without blocks that are computed again."""

import json
import shutil
import subprocess
import threading

from runner import last_json, run

BLOCKS, BATCH = 24, 16
QUERY = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]


class Peak:
    """The most memory of the GPU that was in use while this was open, in MiB."""

    def __init__(self):
        self.most, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while True:
            try:
                self.most = max(self.most, used())
            except (OSError, ValueError, subprocess.SubprocessError):
                return
            if self.ended.wait(0.1):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(10)


def used():
    """The memory in use on the first GPU, in MiB."""
    found = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
    return int(found.splitlines()[0])


def measure(programs, journal, clock, variables):
    """Trains a GPT of 24 blocks alone on the GPU, and looks at the memory in use."""
    if shutil.which(QUERY[0], path=variables.get("PATH")) is None:
        journal.write("memory", f"left out: no {QUERY[0]} here")
        return
    variables = dict(variables, CANDELABRUM_DEVICE="cuda")
    for precision in ("f32", "bf16"):
        for recompute in ("none", "half", "all"):
            for graph in ([], ["--graph"]):
                words = ["--network", "gpt", "--blocks", BLOCKS, "--batch-size", BATCH, "--adamw"]
                words += ["--recompute", recompute, "--precision", precision, *graph]
                words += ["--warm-up", 6, "--threads", 2]
                program = f"'{programs / 'bench-player'}' train {' '.join(map(str, words))}"
                command = ["sh", "-c", f"echo '{{\"steps\": 10}}' | {program}"]
                before = used()
                with Peak() as peak:
                    result = run(command, 30, clock, variables)
                fields = {"mib": peak.most - before}
                answer = last_json(result.whole()) or {}
                if result.status == "ok" and answer.get("seconds"):
                    fields["examples_per_second"] = BATCH * answer["steps"] / answer["seconds"]
                fields["short"] = json.dumps(fields)
                name = " ".join(["memory", precision, "recompute", recompute, *graph])
                journal.result(name, result, variables, **fields)
