#!/usr/bin/env python3
"""The largest GPT that two ranks can train if each of them may use so much memory.

    cargo build --release --example char_lm
    python3 scripts/largest_model.py [--limit-mib 2048] [WAY ...]

Each rank is in a control group of its own with a limit of memory, so this needs root and control groups of version 1.
A page that ranks share counts for the rank that used it first. A model has blocks of 768 features with 12 heads, and a
rank trains on one sequence of 256 tokens in f32 with AdamW, for 4 steps. The peaks of two sizes tell about how many
blocks fit, and then the sizes beside that number are tried. PyTorch's ways need a Python with PyTorch.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
WIDTH, HEADS, WINDOW, STEPS, RANKS = 768, 12, 256, 4, 2
SECONDS = 300

OURS = {
    "nothing": [],
    "recomputed": ["--recompute", "all"],
    "state in bf16": ["--optimizer-state", "bf16"],
    "state of 8 bits": ["--optimizer", "adamw8bit"],
    "shared state": ["--shard", "optimizer"],
    "shared gradients": ["--shard", "gradients"],
    "shared gradients, recomputed": ["--shard", "gradients", "--recompute", "all"],
    "shared gradients, recomputed, 8 bits":
        ["--shard", "gradients", "--recompute", "all", "--optimizer", "adamw8bit"],
    "shared parameters": ["--shard", "parameters", "--recompute", "all"],
    "all": ["--shard", "parameters", "--recompute", "all", "--optimizer", "adamw8bit"],
}
TORCH = {
    "DDP": [],
    "DDP, recomputed": ["recompute"],
    "DDP with ZeroRedundancyOptimizer, recomputed": ["zero", "recompute"],
    "FSDP2": ["fsdp"],
    "FSDP2, recomputed": ["fsdp", "recompute"],
}


def commands(way, blocks, port):
    """The command and the variables of each rank."""
    for rank in range(RANKS):
        if way in OURS:
            program = ROOT / "target/release/examples/char_lm"
            options = ["--blocks", blocks, "--width", WIDTH, "--window", WINDOW]
            options += ["--batch-size", 1, "--epochs", 1, "--max-steps", STEPS, "--write", 1, "--threads", 1]
            variables = {"CANDELABRUM_RANK": rank, "CANDELABRUM_WORLD_SIZE": RANKS}
            variables["CANDELABRUM_JOB"] = f"largest-{port}"
            command = [program, *options, *OURS[way]]
        else:
            command = [sys.executable, __file__, "--rank-of-pytorch", blocks, *TORCH[way]]
            variables = {"RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables["OMP_NUM_THREADS"] = 1
            # glibc's allocator would keep what PyTorch frees: FSDP2 would have fewer blocks than DDP.
            variables["MALLOC_MMAP_THRESHOLD_"] = 1 << 20
        yield list(map(str, command)), {name: str(value) for name, value in variables.items()}


def train(way, blocks, limit):
    """Trains. Returns whether all ranks did, and the most memory of a rank, in MiB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    groups = [GROUPS / f"largest-model-{rank}" for rank in range(RANKS)]
    ranks = []
    for group, (command, variables) in zip(groups, commands(way, blocks, port)):
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(limit << 20))
        (group / "memory.max_usage_in_bytes").write_text("0")
        enter = ["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec \"$@\"", "rank", *command]
        output = tempfile.TemporaryFile()
        rank = subprocess.Popen(enter, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT)
        ranks.append((rank, output))
    codes = []
    for rank, _ in ranks:
        try:
            codes.append(rank.wait(SECONDS))
        except subprocess.TimeoutExpired:
            codes.append(None)
            [other.kill() for other, _ in ranks]
    peaks = [int((group / "memory.max_usage_in_bytes").read_text()) >> 20 for group in groups]
    [group.rmdir() for group in groups]
    good = all(code == 0 for code in codes)
    print(f"  {way}: {blocks} blocks: {'trains' if good else codes}, peaks {peaks} MiB", flush=True)
    if not good and max(peaks) < limit * 0.95:
        for _, output in ranks:
            output.seek(0)
            print(output.read().decode(errors="replace")[-1500:])
    return good, max(peaks)


def largest(way, limit):
    """The most blocks that fit, and the peak with them."""
    (_, small), (good, large) = train(way, 4, limit), train(way, 8, limit)
    if not good:
        sys.exit(f"{way}: 8 blocks do not fit into {limit} MiB, so nothing tells how many do")
    blocks = max(8, 8 + int((limit - large) * 4 / max(large - small, 1)))
    good, peak = train(way, blocks, limit)
    step, best = (1 if good else -1), (blocks, peak)
    while True:
        blocks += step
        fits, peak = train(way, blocks, limit)
        if fits:
            best = blocks, peak
        if fits != good:
            return best


def rank_of_pytorch(blocks, options):
    """A rank of PyTorch."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    import networks

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    networks.WIDTH, networks.HEADS = WIDTH, HEADS
    is_sharded = "fsdp" in options
    # Only the shards of a model of FSDP2 ever have memory.
    with torch.device("meta" if is_sharded else "cpu"):
        model = networks.Gpt(blocks, recompute="recompute" in options)
    if is_sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (RANKS,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    if not is_sharded:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if "zero" in options:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(networks.CHARACTERS, (1, WINDOW + 1))
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.isfinite()
    dist.destroy_process_group()


def main():
    if sys.argv[1:2] == ["--rank-of-pytorch"]:
        return rank_of_pytorch(int(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit-mib", type=int, default=2048)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {[*OURS, *TORCH]}")
    args = parser.parse_args()
    parameters = lambda blocks: blocks * (12 * WIDTH * WIDTH + 13 * WIDTH)
    for way in args.ways or [*OURS, *TORCH]:
        blocks, peak = largest(way, args.limit_mib)
        print(json.dumps({"way": way, "blocks": blocks, "millions": parameters(blocks) / 1e6, "peak_mib": peak}))


if __name__ == "__main__":
    main()
