"""The PyTorch side of `cargo xtask bench-step`: one measured run, one JSON line.

The network, its initial weights and the batches are those of benches/step/src/problem.rs: both
draw them from the same integer hash, so the losses of all contenders can be compared.
"""

import argparse
import json
import platform
import time

import torch
from torch import nn

WARM_UP_STEPS = 14
BATCHES = 8
PARAMETERS = [  # name, fan-in; the shapes are the modules' own
    ("conv1", 25),
    ("conv2", 500),
    ("linear1", 800),
    ("linear2", 500),
]


def hashes(stream, count):
    """`count` 32-bit numbers: MurmurHash3's finalizer over a counter that starts at the stream."""
    h = (torch.arange(count, dtype=torch.int64) + stream * 0x9E3779B9) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def uniform(stream, count):
    """`count` numbers in [0, 1), each exact in f32."""
    return (hashes(stream, count) >> 8).to(torch.float32) / 2**24


class Cnn(nn.Module):
    """SINGA's network for MNIST."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.linear1 = nn.Linear(800, 500)
        self.linear2 = nn.Linear(500, 10)
        with torch.no_grad():
            for i, (name, fan_in) in enumerate(PARAMETERS):
                for j, tensor in enumerate(getattr(self, name).parameters()):
                    values = 2 * uniform(2 * i + j, tensor.numel()) - 1
                    tensor.copy_((values * fan_in**-0.5).reshape(tensor.shape))

    def forward(self, xs):
        ys = self.pool(torch.relu(self.conv1(xs)))
        ys = self.pool(torch.relu(self.conv2(ys)))
        return self.linear2(torch.relu(self.linear1(ys.flatten(1))))


def batch(index, size):
    """Images of ten coarse patterns under noise, and the number of each one's pattern."""
    labels = hashes(200 + index, size) % 10
    patterns = (hashes(300, 10 * 49) & 1).to(torch.float32).reshape(10, 1, 7, 7)
    patterns = patterns.repeat_interleave(4, 2).repeat_interleave(4, 3)
    noise = uniform(100 + index, size * 784).reshape(size, 1, 28, 28)
    return 0.5 * noise + 0.5 * patterns[labels], labels


def peak_rss_mb():
    """The most memory this process ever held; None where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=["pytorch", "pytorch-channels-last"], required=True)
    parser.add_argument("--network", choices=["cnn"], default="cnn")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    layout = torch.contiguous_format
    if args.contender == "pytorch-channels-last":
        layout = torch.channels_last
    model = Cnn().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5)
    criterion = nn.CrossEntropyLoss()
    batches = [batch(i, args.batch_size) for i in range(BATCHES)]
    batches = [(xs.to(memory_format=layout), ys) for xs, ys in batches]

    def step(number):
        xs, ys = batches[number % BATCHES]
        optimizer.zero_grad()
        loss = criterion(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    for number in range(WARM_UP_STEPS):
        loss = step(number)
    warm_up_loss = loss.item()

    steps = 0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds or steps == 0:
        loss = step(WARM_UP_STEPS + steps)
        steps += 1
    seconds = time.perf_counter() - start

    sample = {
        "images_per_second": steps * args.batch_size / seconds,
        "steps": steps,
        "warm_up_loss": warm_up_loss,
        "final_loss": loss.item(),
        "peak_rss_mb": peak_rss_mb(),
        "threads": args.threads,
        "version": f"PyTorch {torch.__version__}, Python {platform.python_version()}",
    }
    print(json.dumps(sample))


if __name__ == "__main__":
    main()
