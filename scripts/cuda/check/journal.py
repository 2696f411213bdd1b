"""The log: a line of JSON for each item, written at once, and a short line on the screen."""

import collections
import json
import threading


class Journal:
    def __init__(self, folder, part, clock):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "log.jsonl", "a", encoding="utf-8")
        self.part, self.clock, self.lock = part, clock, threading.Lock()
        self.counts, self.bad = collections.Counter(), []
        # What an item's environment and libraries are unless it says otherwise.
        self.variables, self.versions = {}, {}

    def write(self, name, status, seconds=0.0, variables=None, **fields):
        """Writes an item. `variables` is its environment, of which those that matter are kept."""
        environment = {
            key: value for key, value in (variables or self.variables).items() if matters(key)
        }
        line = {"name": name, "part": self.part, "status": status, "seconds": round(seconds, 2)}
        line |= {"at": round(self.clock.passed(), 1), **fields}
        line |= {"environment": environment, "versions": self.versions}
        short = fields.get("short") or (fields.get("cuda_error", "") if status != "ok" else "")
        with self.lock:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
            self.counts[status.split(":")[0]] += 1
            if status != "ok" and not status.startswith("left out"):
                self.bad.append(name)
            shown = f"{line['at']:6.1f}  {status:<9.20} {name} {seconds:.1f} s {short}"
            print(shown.rstrip()[:160], flush=True)

    def result(self, name, result, variables=None, most=2_000, **fields):
        """Writes the end of a program."""
        fields = result.fields(most) | fields
        self.write(name, result.status, result.seconds, variables, **fields)

    def close(self):
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self.counts.items()))
        print(f"{self.clock.passed():6.1f}  the end: {counts}")
        for name in self.bad[:60]:
            print(f"  not ok: {name[:120]}")


def matters(name):
    starts = ("CANDELABRUM_", "CUDA_", "NCCL_", "NVIDIA_", "SOFTGPU_", "TORCH", "CUBLAS", "CUDNN")
    others = ("REQUIRE_GPUS", "RUST_BACKTRACE", "RUST_LOG")
    return name.startswith(starts) or name in others


def failed_items(path):
    """The names of the items of a log that ended badly."""
    return [
        name for name, status in statuses(path).items()
        if status != "ok" and not status.startswith("left out")
    ]  # fmt: skip


def ok_items(path):
    """The names of the items of a log that ended well. None if there is no log."""
    try:
        return {name for name, status in statuses(path).items() if status == "ok"}
    except OSError:
        return set()


def statuses(path):
    """How each item of a log has ended, by its name."""
    names = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                item = json.loads(line)
                names[item["name"]] = item["status"]
            except (ValueError, KeyError, TypeError):
                continue
    return names
