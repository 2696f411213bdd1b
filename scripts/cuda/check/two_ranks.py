"""Whole runs of `mnist_dist` by two ranks that share the GPU, where features of a run meet: shared state and CUDA
graphs, optimizers without a kernel, averages, and a run that is continued by another number of ranks.

NCCL accepts two ranks on one GPU because `NCCL_HOSTID` says that each has a host of its own.
"""

import json

from runner import run

SECONDS = 60
ADAMW = ["--optimizer", "adamw", "--lr", "0.001"]
CHECKPOINTS = "CHECKPOINTS"
# What each run has beside the common options, and its number of ranks. The runs of one folder CHECKPOINTS/name follow
# each other, and the last one ends as the run without a break.
RUNS = {
    "one rank": (ADAMW, 1),
    "nothing shared": (ADAMW, 2),
    "shared state": ([*ADAMW, "--shard", "optimizer"], 2),
    "shared state, graphs": ([*ADAMW, "--shard", "optimizer", "--graph"], 2),
    "shared state, bf16": ([*ADAMW, "--shard", "optimizer", "--precision", "bf16"], 2),
    "shared state, first part": (
        [*ADAMW, "--shard", "optimizer", "--max-steps", "60", "--checkpoint-dir", CHECKPOINTS], 2,
    ),
    "continued by one rank": ([*ADAMW, "--checkpoint-dir", CHECKPOINTS], 1),
    "8-bit state, shared": (
        ["--optimizer", "adamw8bit", "--lr", "0.001", "--shard", "optimizer"], 2,
    ),
    "state in bf16": ([*ADAMW, "--optimizer-state", "bf16"], 2),
    "muon": (["--optimizer", "muon", "--lr", "0.002"], 2),
    "adafactor": (["--optimizer", "adafactor", "--lr", "0.001"], 2),
    "average, sparse exchange": ([*ADAMW, "--ema", "0.98", "--dist-option", "sparseTopK"], 2),
}  # fmt: skip


def command_of_ranks(command, world_size=2):
    """The command that starts a program as so many ranks, and fails if one of them does."""
    rank = f"NCCL_HOSTID=host-$rank CANDELABRUM_RANK=$rank {command} & all=\"$all $!\""
    ranks = " ".join(map(str, reversed(range(world_size))))
    wait = 'for one in $all; do wait $one || failed=1; done; exit ${failed:-0}'
    return ["sh", "-c", f"for rank in {ranks}; do {rank}; done; {wait}"]


def variables_of_ranks(variables, job, world_size=2):
    return dict(
        variables, CANDELABRUM_DEVICE="cuda:0", CANDELABRUM_WORLD_SIZE=str(world_size),
        CANDELABRUM_JOB=job, CANDELABRUM_TIMEOUT="40",
    )  # fmt: skip


def runs(programs, work, journal, clock, variables):
    """Trains in each way. What was computed is in the log: the digest, the losses and the accuracy."""
    program = programs / "mnist_dist"
    for number, (name, (options, world_size)) in enumerate(RUNS.items()):
        report = work / f"two-ranks-{number}.json"
        # The same global batches, whoever computes them.
        batch = 128 // world_size
        common = f"--dataset synthetic --epochs 2 --epoch-size 6400 --batch-size {batch} --threads 2"
        words = [str(work / "checkpoints") if word == CHECKPOINTS else word for word in options]
        command = f"'{program}' {common} --report '{report}' {' '.join(words)}"
        ranks = variables_of_ranks(variables, f"gpu-check-{number}", world_size)
        result = run(command_of_ranks(command, world_size), SECONDS, clock, ranks)
        fields = {}
        if report.exists() and result.status == "ok":
            found = json.loads(report.read_text())
            keep = ("train_loss", "eval_loss", "eval_accuracy", "images_per_second", "strategy")
            fields["epochs"] = [{key: epoch.get(key) for key in keep} for epoch in found["epochs"]]
            fields["digests"] = found["parameters_sha256"]
            accuracy = found["epochs"][-1]["eval_accuracy"] if found["epochs"] else None
            fields["short"] = f"accuracy {accuracy}, digest {found['parameters_sha256'][0][:8]}"
        journal.result(f"run {name}", result, ranks, **fields)
