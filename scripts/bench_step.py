"""The PyTorch side of `cargo xtask bench step` and its relatives: one contender on one network.

With --ddp it is one of several ranks, found by the variables that torchrun sets, and the first of
them talks for all. It speaks the protocol of `bench-player train` (benches/player/src/serve.rs): it
warms up, prints a line of JSON, and then takes a sample for every line {"seconds": S} or
{"steps": N} that it reads. The networks, their initial weights and the batches are the same: both
sides draw them from the same integer hash, so the losses of all contenders can be compared.
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import networks
from networks import CHARACTERS, NETWORKS, VOCABULARY, WIDTH

BATCHES = 8  # of a rank
TESTS = 4
MOST_RANKS = 12
SEQUENCE = 32
WORDS = 10000

# Streams of the hash. Those below are the first hundred parameters', by their place in the network.
NOISE, LABELS, PATTERNS, TOKENS, MORE_PARAMETERS = 100, 200, 300, 400, 1000


def hashes(stream, count):
    """`count` 32-bit numbers: MurmurHash3's finalizer over a counter that starts at the stream."""
    h = (torch.arange(count, dtype=torch.int64) + stream * 0x9E3779B9) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def uniform(stream, count):
    """`count` numbers in [0, 1), each exact in f32."""
    return (hashes(stream, count) >> 8).to(torch.float32) / 2**24


def images(index, size, channels, side):
    """Images of ten coarse patterns under noise, and the number of each one's pattern."""
    labels = hashes(LABELS + index, size) % 10
    blocks = (channels, -(-side // 4), -(-side // 4))
    patterns = hashes(PATTERNS, 10 * math.prod(blocks)) & 1
    patterns = patterns.to(torch.float32).reshape(10, *blocks)
    patterns = patterns.repeat_interleave(4, 2).repeat_interleave(4, 3)[..., :side, :side]
    noise = uniform(NOISE + index, size * channels * side**2).reshape(size, channels, side, side)
    return 0.5 * noise + 0.5 * patterns[labels], labels


def sequences(index, size):
    """Tokens, labelled by how many of them are of the vocabulary's first half."""
    tokens = (hashes(TOKENS + index, size * SEQUENCE) % VOCABULARY).reshape(size, SEQUENCE)
    return tokens, (tokens < VOCABULARY // 2).sum(1).clamp(11, 20) - 11


def texts(index, size, length):
    """Texts, and at each position the character that follows. It is one of four, which depend on the
    character before."""
    drawn = hashes(TOKENS + index, size * (length + 1)).reshape(size, length + 1)
    text = [drawn[:, 0] % CHARACTERS]
    for i in range(1, length + 1):
        text.append((5 * text[-1] + drawn[:, i] % 4) % CHARACTERS)
    text = torch.stack(text, 1)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def padded(index, size, *shape):
    """Texts of a tenth or more of the words that have room, and whether most words are of the vocabulary's first
    half. Behind a text are zeros."""
    shape = (size, *shape)
    words = 1 + hashes(TOKENS + index, math.prod(shape)).reshape(-1, shape[-1]) % (WORDS - 1)
    rows, room = words.shape
    lengths = (room + 9) // 10 + hashes(NOISE + index, rows) % (room - (room + 9) // 10 + 1)
    words = (words * (torch.arange(room) < lengths[:, None])).reshape(shape).flatten(1)
    low = ((words > 0) & (words < WORDS // 2)).sum(1)
    return words.reshape(shape), (2 * low > (words > 0).sum(1)).long()


def flat_images(index, size):
    xs, ys = images(index, size, 1, 28)
    return xs.flatten(1), ys


INPUTS = {"images": images, "rows": flat_images, "sequences": sequences, "texts": texts, "padded": padded}


def draw(network, index, size):
    """The batch of this number and size, from the hash."""
    kind, *sizes = NETWORKS[network][1]
    return INPUTS[kind](index, size, *sizes)


class Data:
    """The batches of a contender, and those that it does not train on. They are drawn from the hash, or read from a
    file that `bench-player problem` wrote."""

    def __init__(self, args):
        size = args.batch_size
        self.vocabulary = WORDS if args.network in ("text-gru", "han") else CHARACTERS
        self.classes = 2
        if not args.problem:
            first = int(os.environ["RANK"]) * BATCHES if args.ddp else 0
            self.train = [draw(args.network, first + i, size) for i in range(BATCHES)]
            self.test = None  # until the first evaluation
            return
        from safetensors.torch import load_file

        file = load_file(args.problem)
        self.vocabulary, self.classes = file["vocabulary"].item(), file["classes"].item()

        def batches(part):
            xs, ys = file[f"{part}.xs"], file[f"{part}.ys"].long()
            xs = xs if xs.is_floating_point() else xs.long()
            return list(zip(xs.split(size), ys.split(size)))

        self.train, self.test = batches("train"), batches("test")


def drawn_tests(network, size):
    """The batches that no rank trains on."""
    first = MOST_RANKS * BATCHES
    return [draw(network, index, size) for index in range(first, first + TESTS)]


def fan_in(module):
    """What a module's parameters start by, uniform in ±1/√fan-in; None leaves 1 and 0 (norms)."""
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        return None
    if isinstance(module, networks.Gpt):
        return WIDTH
    if isinstance(module, networks.VitTables):
        return module.class_token.shape[-1]
    if isinstance(module, nn.RNNBase):
        return module.hidden_size
    if isinstance(module, nn.Embedding):
        return 1
    return module.weight[0].numel()


@torch.no_grad()
def initialise(network):
    stream = 0
    for module in network.modules():
        for tensor in module.parameters(recurse=False):
            if (inputs := fan_in(module)) is not None:
                own = stream if stream < NOISE else MORE_PARAMETERS + stream - NOISE
                values = 2 * uniform(own, tensor.numel()) - 1
                tensor.copy_((values * inputs**-0.5).reshape(tensor.shape))
            stream += 1


class Run:
    """A contender in training."""

    def __init__(self, args):
        data = Data(args)
        data.blocks, data.recompute = args.blocks, args.recompute
        network = NETWORKS[args.network][0](data)
        initialise(network)
        network = network.to(args.device)
        self.batches = [(xs.to(args.device), ys.to(args.device)) for xs, ys in data.train]
        self.args, self.tests = args, data.test
        if args.contender == "pytorch-channels-last":
            layout = torch.channels_last
            network = network.to(memory_format=layout)
            self.batches = [(xs.to(memory_format=layout), ys) for xs, ys in self.batches]
        if args.ddp:
            view = args.ddp == "bucket-view"
            network = DistributedDataParallel(network, gradient_as_bucket_view=view)
        if args.zero:
            self.optimizer = ZeroRedundancyOptimizer(
                network.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr or 0.001
            )
        elif args.adamw:
            self.optimizer = torch.optim.AdamW(network.parameters(), lr=args.lr or 0.001)
        else:
            self.optimizer = torch.optim.SGD(
                network.parameters(), lr=args.lr or 0.005, momentum=0.9, weight_decay=1e-5
            )
        self.criterion = nn.CrossEntropyLoss()
        self.network = network
        if args.contender == "pytorch-compile":
            self.network = torch.compile(network)
        if args.contender == "pytorch-cuda-graphs":
            self.network = torch.compile(network, mode="reduce-overhead")
        self.autocast = torch.autocast(
            torch.device(args.device).type, torch.bfloat16, enabled=args.precision == "bf16"
        )
        self.taken = 0
        self.step_seconds = math.inf

    def step(self):
        xs, ys = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        self.optimizer.zero_grad()
        with self.autocast:
            # With labels at every position, each position is a row.
            loss = self.criterion(self.network(xs).flatten(0, -2), ys.flatten())
        loss.backward()
        self.optimizer.step()
        return loss

    def warm_up(self, steps):
        return [self.sample({"steps": 1})["loss"] for _ in range(steps)]

    def sample(self, request):
        """Trains as the request says, with equally many steps on all ranks: those that fill the
        time by rank 0's previous measurement. The time is that of the last rank."""
        cpu = time.process_time()
        if "steps" in request:
            steps = request["steps"]
        else:
            steps = int(share(max(1, math.ceil(request["seconds"] / self.step_seconds))))
        barrier()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        loss = loss.item()  # waits for a GPU
        barrier()
        seconds = time.perf_counter() - start
        self.step_seconds = seconds / steps
        cpu = time.process_time() - cpu
        tested = self.evaluate() if request.get("evaluate") else {}
        return tested | {
            "steps": steps,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "loss": loss,
            "examples_per_second": ranks() * len(self.batches[0][0]) / self.step_seconds,
            "step_seconds": self.step_seconds,
        }

    @torch.no_grad()
    def evaluate(self):
        """The mean loss of the examples that are not trained on, and the share of the labels that have the highest
        score."""
        if self.tests is None:
            self.tests = drawn_tests(self.args.network, self.args.batch_size)
        self.network.eval()
        loss, right, count = 0.0, 0, 0
        for xs, ys in self.tests:
            scores = self.network(xs.to(self.args.device)).flatten(0, -2)
            ys = ys.to(self.args.device).flatten()
            loss += self.criterion(scores, ys).item() * len(ys)
            right += (scores.argmax(1) == ys).sum().item()
            count += len(ys)
        self.network.train()
        return {"test_loss": loss / count, "test_accuracy": right / count}


def ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def talks():
    """Whether this process talks for all ranks."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier():
    if dist.is_initialized():
        dist.barrier()


def share(number):
    """Rank 0's number, on every rank."""
    if not dist.is_initialized():
        return number
    number = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(number, 0)
    return number.item()


def understood(line):
    """The request in a line: its kind, its number, and whether an evaluation follows."""
    try:
        asked = json.loads(line)
        evaluate = asked.pop("evaluate", False)
        ((kind, number),) = asked.items()
        assert kind in ("seconds", "steps") and 0 <= number < 1e6
        assert kind == "seconds" or number == int(number) >= 1
        return kind, number, evaluate
    except (AttributeError, AssertionError, TypeError, ValueError):
        raise SystemExit(f"error: asked for `{line.strip()}`") from None


def request():
    """The next request, on every rank; None at the end."""
    kind, number, evaluate = "seconds", -1.0, False
    if talks() and (line := sys.stdin.readline()):
        kind, number, evaluate = understood(line)
    is_steps, number, evaluate = share(kind == "steps"), share(number), share(evaluate)
    if number < 0:
        return None
    return {"steps" if is_steps else "seconds": int(number) if is_steps else number, "evaluate": evaluate}


def peak_rss_mb():
    """The most memory this process ever held, as a field; none where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return {"peak_rss_mb": int(line.split()[1]) / 1024}
    except (OSError, StopIteration):
        return {}


def say(event, **figures):
    if talks():
        # A loss that is not a number is an error, because no reader of JSON takes it.
        print(json.dumps({"event": event, **figures}, allow_nan=False), flush=True)


def main():
    contenders = ["pytorch", "pytorch-channels-last", "pytorch-compile", "pytorch-cuda-graphs"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=contenders, required=True)
    parser.add_argument("--ddp", choices=["default", "bucket-view"])
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--problem", help="a file of batches that bench-player problem wrote")
    parser.add_argument("--zero", action="store_true", help="share the optimizer's state (ZeRO-1)")
    parser.add_argument("--adamw", action="store_true", help="AdamW instead of SGD with momentum")
    parser.add_argument("--lr", type=float, help="0.001 with --adamw and 0.005 without, if not given")
    parser.add_argument("--blocks", type=int, default=6, help="of the network gpt")
    parser.add_argument("--recompute", action="store_true", help="computes the blocks of gpt again in the backward pass")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--tf32", action="store_true", help="round f32 to TF32 on a GPU")
    args = parser.parse_args()

    # PyTorch's own default is TF32 for convolutions and f32 for products.
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.backends.cudnn.allow_tf32 = args.tf32
    torch.set_num_threads(args.threads)
    if args.ddp:
        # It stands still while others are measured, which is not to count as a failure.
        dist.init_process_group("gloo", timeout=datetime.timedelta(days=1))
    run = Run(args)
    losses = run.warm_up(args.warm_up)
    say(
        "ready",
        ranks=ranks(),
        backend="gloo" if args.ddp else "single",
        version=f"PyTorch {torch.__version__}, Python {platform.python_version()}",
        warm_up_losses=losses,
        gradient_bytes=4 * sum(p.numel() for p in run.network.parameters()),
    )
    while (asked := request()) is not None:
        say("sample", **run.sample(asked), **peak_rss_mb())
    say("done")
    if args.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
