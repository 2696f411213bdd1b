"""Gloo's all-reduce through torch.distributed: the peer of `cargo xtask bench allreduce`.

One rank, found by the variables that torchrun sets. It answers the same lines as `bench-player
allreduce` and measures in the same way (benches/player/src/allreduce.rs): a barrier, then a batch of operations of at least 2 ms, timed by its slowest rank; the median of the batches.
How many operations that takes is found once for a size, by the best of three. After `--late-ms MS`
rank 0 begins every batch so much later, and the clock starts then.
"""

import datetime
import json
import platform
import sys
import time

import torch
import torch.distributed as dist

BATCH = 2e-3
FEWEST, MOST = 3, 500
LATE = float(sys.argv[2]) / 1e3 if sys.argv[1:2] == ["--late-ms"] else 0.0


def largest(value):
    value = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def known(rank, elements):
    """Small integers, which a float adds exactly."""
    return ((torch.arange(elements) + 7 * rank) % 1009).to(torch.float32)


def prepare(elements):
    """Room for so many numbers, now zeros, and whether known ones were reduced right."""
    numbers = known(dist.get_rank(), elements)
    dist.all_reduce(numbers)
    total = sum(known(rank, elements) for rank in range(dist.get_world_size()))
    wrong = 0.0 if torch.equal(numbers, total) else 1.0
    return numbers.zero_(), largest(wrong) == 0.0


def batch(numbers, operations):
    """Seconds of the slowest rank for so many operations."""
    dist.barrier()
    start = time.perf_counter() + LATE
    if dist.get_rank() == 0:
        time.sleep(LATE)
    for _ in range(operations):
        dist.all_reduce(numbers)
    return largest(time.perf_counter() - start)


def find_batch(numbers):
    """Operations of a batch, and the seconds that they take."""
    operations = 1
    while (took := min(batch(numbers, operations) for _ in range(3))) < BATCH:
        operations *= 2
    return operations, took


def sample(numbers, operations, took, seconds):
    batches = min(max(int(seconds / took), FEWEST), MOST)
    times = sorted(batch(numbers, operations) / operations for _ in range(batches))
    return {"seconds": times[batches // 2], "batches": batches, "operations": operations}


def say(event, **figures):
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, **figures}), flush=True)


def understood(line):
    """The elements and the seconds of a request."""
    try:
        asked = json.loads(line)
        words = [float(asked.pop("elements")), float(asked.pop("seconds"))]
        assert not asked and 0 <= words[0] < 2**32 and 0 <= words[1] < 1e6
        return words
    except (AttributeError, AssertionError, KeyError, TypeError, ValueError):
        raise SystemExit(f"error: asked for `{line.strip()}`") from None


def request():
    """What rank 0 was asked for, on every rank; None at the end."""
    words = [-1.0, 0.0]
    if dist.get_rank() == 0 and (line := sys.stdin.readline()):
        words = understood(line)
    words = torch.tensor(words, dtype=torch.float64)
    dist.broadcast(words, 0)
    elements, seconds = words.tolist()
    return None if elements < 0 else (int(elements), seconds)


def main():
    torch.set_num_threads(1)
    # It stands still while others are measured, which is not to count as a failure.
    dist.init_process_group("gloo", timeout=datetime.timedelta(days=1))
    version = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    say("ready", ranks=dist.get_world_size(), backend="gloo", version=version)
    prepared = None
    while asked := request():
        elements, seconds = asked
        if prepared != elements:
            numbers = None  # the old ones first: two large ones need not fit
            numbers, correct = prepare(elements)
            operations, took = find_batch(numbers)
            prepared = elements
        say("sample", **sample(numbers, operations, took, seconds), correct=correct)
    say("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
