"""The log: a line of JSON for each item, written at once, and a short line on the screen."""

import collections
import contextlib
import json
import threading
import time

STARTS = ("CANDELABRUM_", "CUDA_", "NCCL_", "NVIDIA_", "SOFTGPU_", "TORCH", "CUBLAS", "CUDNN")
OTHERS = ("REQUIRE_GPUS", "RUST_BACKTRACE", "RUST_LOG")


class Journal:
    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "log.jsonl", "a", encoding="utf-8")
        self.start, self.lock = time.monotonic(), threading.Lock()
        self.counts, self.bad, self.versions = collections.Counter(), [], {}

    def write(self, name, status, seconds=0.0, variables=(), **fields):
        """Writes an item. `variables` is its environment, of which those that matter are kept."""
        matter = {name: variables[name] for name in variables if name.startswith(STARTS) or name in OTHERS}
        line = {"name": name, "status": status, "seconds": round(seconds, 2)}
        line |= {"at": round(time.monotonic() - self.start, 1), **fields}
        line |= {"environment": matter, "versions": self.versions}
        short = fields.get("short") or (fields.get("cuda_error", "") if status != "ok" else "")
        with self.lock:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
            self.counts[status.split(":")[0]] += 1
            if status != "ok" and not status.startswith("left out"):
                self.bad.append(name)
            shown = f"{line['at']:6.1f}  {status:<9.20} {name} {seconds:.1f} s {short}"
            print(shown.rstrip()[:160], flush=True)

    def close(self):
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self.counts.items()))
        print(f"{time.monotonic() - self.start:6.1f}  the end: {counts}")
        for name in self.bad[:60]:
            print(f"  not ok: {name[:120]}")


def ended_well(path):
    """The names of the items of a log that ended well."""
    found = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            # A run that was cut off leaves half a line.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                item = json.loads(line)
                found[item["name"]] = item["status"]
    return {name for name, status in found.items() if status == "ok"}
