"""The PyTorch side of `cargo xtask bench-step` and `bench-ddp`: one contender on one network.

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
from torch.nn.parallel import DistributedDataParallel

BATCHES = 8
SEQUENCE = 32
VOCABULARY = 64
TEXT = 64
CHARACTERS = 96
CONTEXT = 256
WIDTH = 384
HEADS = 6

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
    blocks = (channels, side // 4, side // 4)
    patterns = hashes(PATTERNS, 10 * channels * (side // 4) ** 2) & 1
    patterns = patterns.to(torch.float32).reshape(10, *blocks)
    patterns = patterns.repeat_interleave(4, 2).repeat_interleave(4, 3)
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


class Cnn(nn.Module):
    """SINGA's network for MNIST."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.linear1 = nn.Linear(800, 500)
        self.linear2 = nn.Linear(500, 10)

    def forward(self, xs):
        ys = self.pool(torch.relu(self.conv1(xs)))
        ys = self.pool(torch.relu(self.conv2(ys)))
        return self.linear2(torch.relu(self.linear1(ys.flatten(1))))


class Mlp(nn.Module):
    """784-1024-1024-10, on the same images."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(784, 1024)
        self.linear2 = nn.Linear(1024, 1024)
        self.linear3 = nn.Linear(1024, 10)

    def forward(self, xs):
        return self.linear3(torch.relu(self.linear2(torch.relu(self.linear1(xs)))))


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            conv = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, xs):
        ys = self.relu(self.bn1(self.conv1(xs)))
        ys = self.bn2(self.conv2(ys))
        shortcut = xs if self.downsample is None else self.downsample(xs)
        ys += shortcut
        return self.relu(ys)


class Bottleneck(nn.Module):
    """torchvision's Bottleneck, whose 3x3 convolution has the stride."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != 4 * channels:
            conv = nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(4 * channels))

    def forward(self, xs):
        ys = self.relu(self.bn1(self.conv1(xs)))
        ys = self.relu(self.bn2(self.conv2(ys)))
        ys = self.bn3(self.conv3(ys))
        shortcut = xs if self.downsample is None else self.downsample(xs)
        ys += shortcut
        return self.relu(ys)


class Resnet(nn.Module):
    """torchvision's residual networks. A small stem is a 3x3 convolution that keeps the size."""

    def __init__(self, block, counts, classes, small_stem=False):
        super().__init__()
        kernel = 3 if small_stem else 7
        stride = 1 if small_stem else 2
        self.conv1 = nn.Conv2d(3, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, padding=1)
        inputs, times = 64, 4 if block is Bottleneck else 1
        for stage, count in enumerate(counts):
            channels, blocks = 64 << stage, []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inputs, channels, stride))
                inputs = times * channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, xs):
        ys = self.maxpool(self.relu(self.bn1(self.conv1(xs))))
        ys = self.layer4(self.layer3(self.layer2(self.layer1(ys))))
        return self.fc(self.avgpool(ys).flatten(1))


def conv_norm(inputs, outputs, kernel=3, stride=1, groups=1):
    """torchvision's Conv2dNormActivation with ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """torchvision's InvertedResidual."""

    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        wide = expansion * inputs
        layers = [] if expansion == 1 else [conv_norm(inputs, wide, 1)]
        layers += [
            conv_norm(wide, wide, stride=stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, xs):
        return xs + self.conv(xs) if self.is_residual else self.conv(xs)


class MobileNetV2(nn.Module):
    """torchvision's mobilenet_v2(dropout=0.0), because masks would differ between libraries."""

    def __init__(self):
        super().__init__()
        features, inputs = [conv_norm(3, 32, stride=2)], 32
        for expansion, outputs, count, stride in [
            *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
            *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
        ]:
            for index in range(count):
                own_stride = stride if index == 0 else 1
                features.append(InvertedResidual(inputs, outputs, own_stride, expansion))
                inputs = outputs
        features.append(conv_norm(inputs, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(1280, 1000))

    def forward(self, xs):
        ys = nn.functional.adaptive_avg_pool2d(self.features(xs), 1)
        return self.classifier(ys.flatten(1))


class Gru(nn.Module):
    """A classifier of token sequences: embedding, GRU, a linear layer on the last hidden state."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.gru = nn.GRU(64, 128, batch_first=True)
        self.linear = nn.Linear(128, 10)

    def forward(self, xs):
        ys, _ = self.gru(self.embedding(xs))
        return self.linear(ys[:, -1])


class Lstm(nn.Module):
    """A language model of characters: embedding, LSTM, a linear layer at every position."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        self.lstm = nn.LSTM(64, 256, batch_first=True)
        self.linear = nn.Linear(256, CHARACTERS)

    def forward(self, xs):
        ys, _ = self.lstm(self.embedding(xs))
        return self.linear(ys)


class GptBlock(nn.Module):
    """A block of a transformer, with the normalisation before each branch."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, xs):
        xs = xs + self.out(self.attention(self.qkv(self.norm1(xs))))
        return xs + self.down(self.gelu(self.up(self.norm2(xs))))

    @staticmethod
    def attention(qkv):
        q, k, v = (
            part.unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in qkv.split(WIDTH, 2)
        )
        ys = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return ys.transpose(1, 2).flatten(2)


class Gpt(nn.Module):
    """GPT-2's structure. The last layer has the table of the tokens as its weight."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(CHARACTERS, WIDTH))
        self.positions = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(GptBlock() for _ in range(6)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, xs):
        ys = nn.functional.embedding(xs, self.tokens) + self.positions
        return nn.functional.linear(self.norm(self.blocks(ys)), self.tokens)


def images_of(channels, side):
    return lambda index, size: images(index, size, channels, side)


def texts_of(length):
    return lambda index, size: texts(index, size, length)


def flat_images(index, size):
    xs, ys = images(index, size, 1, 28)
    return xs.flatten(1), ys


# What makes each network, and its batches by their number and size.
NETWORKS = {
    "cnn": (Cnn, images_of(1, 28)),
    "mlp": (Mlp, flat_images),
    "resnet18": (lambda: Resnet(Block, [2, 2, 2, 2], 10), images_of(3, 32)),
    "resnet18-small": (lambda: Resnet(Block, [2, 2, 2, 2], 10, small_stem=True), images_of(3, 32)),
    "resnet18-224": (lambda: Resnet(Block, [2, 2, 2, 2], 1000), images_of(3, 224)),
    "resnet50-224": (lambda: Resnet(Bottleneck, [3, 4, 6, 3], 1000), images_of(3, 224)),
    "mobilenet-v2-224": (MobileNetV2, images_of(3, 224)),
    "gru": (Gru, sequences),
    "lstm": (Lstm, texts_of(TEXT)),
    "gpt": (Gpt, texts_of(CONTEXT)),
}


def fan_in(module):
    """What a module's parameters start by, uniform in ±1/√fan-in; None leaves 1 and 0 (norms)."""
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        return None
    if isinstance(module, Gpt):
        return WIDTH
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
        make, batch = NETWORKS[args.network]
        network = make()
        initialise(network)
        network = network.to(args.device)
        first = int(os.environ["RANK"]) * BATCHES if args.ddp else 0
        batches = [batch(first + i, args.batch_size) for i in range(BATCHES)]
        self.batches = [(xs.to(args.device), ys.to(args.device)) for xs, ys in batches]
        if args.contender == "pytorch-channels-last":
            layout = torch.channels_last
            network = network.to(memory_format=layout)
            self.batches = [(xs.to(memory_format=layout), ys) for xs, ys in self.batches]
        if args.ddp:
            view = args.ddp == "bucket-view"
            network = DistributedDataParallel(network, gradient_as_bucket_view=view)
        self.optimizer = torch.optim.SGD(
            network.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5
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
        xs, ys = self.batches[self.taken % BATCHES]
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
        return {
            "steps": steps,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "loss": loss,
            "examples_per_second": ranks() * len(self.batches[0][0]) / self.step_seconds,
            "step_seconds": self.step_seconds,
        }


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
    """The request in a line: its kind and its number."""
    try:
        ((kind, number),) = json.loads(line).items()
        assert kind in ("seconds", "steps") and 0 <= number < 1e6
        assert kind == "seconds" or number == int(number) >= 1
        return kind, number
    except (AttributeError, AssertionError, TypeError, ValueError):
        raise SystemExit(f"error: asked for `{line.strip()}`") from None


def request():
    """The next request, on every rank; None at the end."""
    kind, number = "seconds", -1.0
    if talks() and (line := sys.stdin.readline()):
        kind, number = understood(line)
    is_steps, number = share(kind == "steps"), share(number)
    if number < 0:
        return None
    return {"steps": int(number)} if is_steps else {"seconds": number}


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
