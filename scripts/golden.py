"""Writes the golden files of the tests with PyTorch. Run by hand, from anywhere:

    pip install torch safetensors numpy
    python scripts/golden.py [function ..]        all of them, or those named

Inputs come from an integer hash, implemented identically in crates/testkit/src/random.rs, so that
both sides make the same numbers without a file:

    mix(z)                   the output function of SplitMix64
    hash(seed, i)          = mix(seed * 0x9E3779B97F4A7C15 + i + 1)           modulo 2^64
    unit(seed, i)          = (hash(seed, i) >> 40) / 2^24                     in [0, 1)
    uniform(.., lo, hi)[i] = lo + (hi - lo) * unit(seed, i)                   in float64, then cast
    integers(.., n)[i]     = (hash(seed, i) >> 32) mod n

Files: crates/nn/tests/golden/*.safetensors (operations: computed in float64, `<case>.<name>`, with
`<case>.config` as integers), crates/optim/tests/golden/sgd.safetensors, and
tests/golden/mnist_cnn_sgd.safetensors (recipe at `mnist_cnn_sgd`). Versions and hyper-parameters
are in the metadata of each file.
"""

import json
import pathlib
import sys

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent


def hashes(n, seed):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(shape, seed, lo=-1.0, hi=1.0, dtype=torch.float64):
    unit = (hashes(int(np.prod(shape)), seed) >> np.uint64(40)).astype(np.float64) / 2.0**24
    return torch.from_numpy((lo + (hi - lo) * unit).reshape(shape)).to(dtype)


def integers(shape, seed, n):
    values = (hashes(int(np.prod(shape)), seed) >> np.uint64(32)) % np.uint64(n)
    return torch.from_numpy(values.astype(np.int64).reshape(shape))


def save(path, tensors, **metadata):
    path = ROOT / path
    path.parent.mkdir(parents=True, exist_ok=True)
    # As old as the code that reads it, whatever the allocator did: contiguous and without views.
    tensors = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    metadata = {name: v if isinstance(v, str) else json.dumps(v) for name, v in metadata.items()}
    versions = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "script": "scripts/golden.py",
    }
    safetensors.torch.save_file(tensors, path, metadata=versions | metadata)
    print(f"{path.relative_to(ROOT)}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def backward(tensors, case, inputs, ys, seed):
    """Stores inputs, result, the gradient fed in, and the gradients of the inputs."""
    dys = uniform(tuple(ys.shape), seed) if ys.dim() else torch.tensor(1.0, dtype=ys.dtype)
    gradients = torch.autograd.grad(ys, list(inputs.values()), dys)
    tensors |= {f"{case}.{name}": t for name, t in inputs.items()}
    tensors |= {f"{case}.d{name}": g for name, g in zip(inputs, gradients)}
    tensors |= {f"{case}.ys": ys, f"{case}.dys": dys}


def leaf(t):
    return t.clone().requires_grad_()


def conv2d():
    # case: input, weight, stride, padding, dilation, groups, bias, relu, integers
    cases = {
        "plain": ((2, 3, 7, 9), (4, 3, 3, 3), (1, 1), (0, 0), (1, 1), 1, False, False, False),
        "bias_relu": ((3, 2, 6, 5), (5, 2, 3, 2), (1, 1), (0, 0), (1, 1), 1, True, True, False),
        "exact_zeros": ((2, 2, 6, 6), (3, 2, 2, 2), (1, 1), (1, 1), (1, 1), 1, True, True, True),
        "stride": ((2, 2, 9, 8), (3, 2, 3, 3), (2, 3), (0, 0), (1, 1), 1, True, False, False),
        "padding": ((1, 2, 5, 6), (3, 2, 3, 5), (1, 1), (1, 3), (1, 1), 1, True, True, False),
        "dilation": ((2, 2, 9, 10), (2, 2, 3, 2), (1, 1), (2, 1), (2, 3), 1, True, False, False),
        "groups": ((2, 6, 5, 5), (9, 2, 3, 3), (1, 2), (1, 1), (1, 1), 3, True, True, False),
        "depthwise": ((2, 4, 6, 6), (4, 1, 3, 3), (2, 2), (1, 1), (1, 1), 4, False, False, False),
        "pointwise": ((2, 5, 4, 3), (7, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1, True, True, False),
        "all": ((2, 4, 11, 10), (6, 2, 3, 2), (2, 3), (2, 1), (2, 2), 2, True, True, False),
    }
    tensors = {}
    for index, (case, spec) in enumerate(cases.items()):
        x, w, stride, padding, dilation, groups, bias, relu, whole = spec
        seed = 10 * index

        def values(shape, seed):
            return integers(shape, seed, 3).double() - 1 if whole else uniform(shape, seed)

        inputs = {"xs": leaf(values(x, seed)), "weight": leaf(values(w, seed + 1))}
        if bias:
            inputs["bias"] = leaf(values((w[0],), seed + 2))
        ys = F.conv2d(
            inputs["xs"], inputs["weight"], inputs.get("bias"), stride, padding, dilation, groups
        )
        if whole:
            assert (ys == 0).sum() > 10, "this case is about exact zeros"
        ys = F.relu(ys) if relu else ys
        backward(tensors, case, inputs, ys, seed + 3)
        config = [*stride, *padding, *dilation, groups, int(relu)]
        tensors[f"{case}.config"] = torch.tensor(config)
    order = "stride y, x; padding y, x; dilation y, x; groups; relu"
    save("crates/nn/tests/golden/conv2d.safetensors", tensors, config=order)


def linear():
    cases = {
        "plain": ((3, 5), 4, False, False),
        "bias": ((7, 3), 2, True, False),
        "relu": ((5, 9), 11, True, True),
        "relu_no_bias": ((4, 3), 6, False, True),
        "three_dims": ((2, 3, 5), 4, True, True),
        "one_row": ((1, 33), 17, True, False),
    }
    tensors = {}
    for index, (case, (x, outputs, bias, relu)) in enumerate(cases.items()):
        seed = 1000 + 10 * index
        inputs = {
            "xs": leaf(uniform(x, seed)),
            "weight": leaf(uniform((outputs, x[-1]), seed + 1)),
        }
        if bias:
            inputs["bias"] = leaf(uniform((outputs,), seed + 2))
        ys = F.linear(inputs["xs"], inputs["weight"], inputs.get("bias"))
        ys = F.relu(ys) if relu else ys
        backward(tensors, case, inputs, ys, seed + 3)
        tensors[f"{case}.config"] = torch.tensor([int(relu)])
    save("crates/nn/tests/golden/linear.safetensors", tensors, config="relu")


def max_pool2d():
    nan = float("nan")
    two_nans = uniform((1, 1, 4, 6), 2901)
    two_nans[0, 0, 0, 0] = two_nans[0, 0, 1, 0] = two_nans[0, 0, 2, 5] = nan
    cases = {
        "two_by_two": (uniform((2, 3, 6, 8), 2000), (2, 2), (2, 2), (0, 0)),
        "odd_size": (uniform((2, 2, 7, 9), 2010), (2, 2), (2, 2), (0, 0)),
        "ties": (integers((2, 2, 6, 6), 2020, 3).double(), (2, 2), (2, 2), (0, 0)),
        "all_equal": (torch.full((1, 2, 4, 4), 0.5, dtype=torch.float64), (2, 2), (2, 2), (0, 0)),
        "overlapping": (uniform((2, 2, 7, 8), 2030), (3, 3), (2, 2), (1, 1)),
        "overlapping_ties": (integers((1, 3, 7, 7), 2040, 3).double(), (3, 3), (1, 1), (1, 1)),
        "overlapping_equal": (torch.zeros((1, 1, 5, 5), dtype=torch.float64), (3, 3), (2, 2), (1, 1)),
        "unequal_sides": (uniform((2, 1, 9, 7), 2050), (3, 2), (2, 1), (1, 0)),
        "gaps": (uniform((1, 2, 9, 9), 2060), (2, 2), (3, 4), (0, 0)),
        "negative": (uniform((1, 2, 5, 5), 2070, -2.0, -1.0), (3, 3), (2, 2), (1, 1)),
        "nan": (two_nans, (2, 2), (2, 2), (0, 0)),
        "nan_overlapping": (two_nans, (3, 3), (1, 1), (1, 1)),
    }
    tensors = {}
    for index, (case, (xs, kernel, stride, padding)) in enumerate(cases.items()):
        inputs = {"xs": leaf(xs)}
        ys = F.max_pool2d(inputs["xs"], kernel, stride, padding)
        backward(tensors, case, inputs, ys, 2500 + index)
        tensors[f"{case}.config"] = torch.tensor([*kernel, *stride, *padding])
    order = "kernel y, x; stride y, x; padding y, x"
    save("crates/nn/tests/golden/max_pool2d.safetensors", tensors, config=order)


def relu():
    xs = torch.cat([torch.tensor([0.0, -0.0, 1.0, -1.0, float("nan")]).double(), uniform((6,), 3000)])
    tensors, inputs = {}, {"xs": leaf(xs)}
    backward(tensors, "relu", inputs, F.relu(inputs["xs"]), 3001)
    save("crates/nn/tests/golden/relu.safetensors", tensors)


def activations():
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 1e-30, inf, -inf, nan]).double()
    xs = torch.cat([special, uniform((40,), 3100, -8.0, 8.0)])
    functions = {
        "gelu": F.gelu,
        "gelu_tanh": lambda xs: F.gelu(xs, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }
    tensors = {}
    for index, (case, function) in enumerate(functions.items()):
        inputs = {"xs": leaf(xs)}
        backward(tensors, case, inputs, function(inputs["xs"]), 3110 + index)
        seed = 3200 + 10 * index
        inputs = {
            "xs": leaf(uniform((5, 3), seed)),
            "weight": leaf(uniform((4, 3), seed + 1)),
            "bias": leaf(uniform((4,), seed + 2)),
        }
        ys = function(F.linear(*inputs.values()))
        backward(tensors, f"linear_{case}", inputs, ys, seed + 3)
    save("crates/nn/tests/golden/activations.safetensors", tensors)


def avg_pool2d():
    cases = {
        "two_by_two": ((2, 3, 6, 8), (2, 2), (2, 2), (0, 0), True),
        "odd_size": ((2, 2, 7, 9), (2, 2), (2, 2), (0, 0), True),
        "overlapping": ((2, 2, 7, 8), (3, 3), (2, 2), (1, 1), True),
        "overlapping_inside": ((2, 2, 7, 8), (3, 3), (2, 2), (1, 1), False),
        "unequal_sides": ((2, 1, 9, 7), (3, 2), (2, 1), (1, 0), False),
        "gaps": ((1, 2, 9, 9), (2, 2), (3, 4), (0, 0), True),
        "wide_padding": ((1, 2, 4, 5), (4, 5), (1, 2), (2, 2), True),
        "wide_padding_inside": ((1, 2, 4, 5), (4, 5), (1, 2), (2, 2), False),
        "all_equal": (None, (3, 3), (2, 2), (1, 1), True),
    }
    tensors = {}
    for index, (case, (shape, kernel, stride, padding, include)) in enumerate(cases.items()):
        equal = torch.full((1, 2, 5, 5), 0.5, dtype=torch.float64)
        inputs = {"xs": leaf(uniform(shape, 3300 + 10 * index) if shape else equal)}
        ys = F.avg_pool2d(inputs["xs"], kernel, stride, padding, count_include_pad=include)
        backward(tensors, case, inputs, ys, 3305 + 10 * index)
        config = [*kernel, *stride, *padding, int(include)]
        tensors[f"{case}.config"] = torch.tensor(config)
    order = "kernel y, x; stride y, x; padding y, x; count_include_pad"
    save("crates/nn/tests/golden/avg_pool2d.safetensors", tensors, config=order)


def global_avg_pool2d():
    tensors = {}
    for index, (case, shape) in enumerate({"plain": (2, 3, 5, 7), "one": (3, 2, 1, 1)}.items()):
        inputs = {"xs": leaf(uniform(shape, 3400 + 10 * index))}
        ys = F.adaptive_avg_pool2d(inputs["xs"], 1).flatten(1)
        backward(tensors, case, inputs, ys, 3405 + 10 * index)
    save("crates/nn/tests/golden/global_avg_pool2d.safetensors", tensors)


def embedding():
    cases = {
        "repeated": (integers((4, 6), 3501, 5), None),
        "padding": (integers((4, 6), 3511, 5), 2),
        "scalar": (torch.tensor(3), None),
        "none": (torch.zeros((0, 2), dtype=torch.int64), None),
    }
    tensors = {}
    for case, (indices, padding) in cases.items():
        inputs = {"weight": leaf(uniform((7, 3), 3500))}
        ys = F.embedding(indices, inputs["weight"], padding_idx=padding)
        backward(tensors, case, inputs, ys, 3502)
        tensors[f"{case}.indices"] = indices
        tensors[f"{case}.config"] = torch.tensor([] if padding is None else [padding]).long()
    save("crates/nn/tests/golden/embedding.safetensors", tensors, config="padding_idx or nothing")


def recurrent():
    """`nn.GRU` and `nn.LSTM`, batch first. `ys` are all hidden states, `final` the last cell state."""
    cases = {  # batch, steps, inputs, hidden, bias, initial state
        "plain": (3, 5, 4, 7, True, False),
        "state": (3, 5, 4, 7, True, True),
        "no_bias": (2, 4, 3, 5, False, False),
        "one_step": (4, 1, 3, 6, True, True),
        "one_sequence": (1, 6, 5, 3, True, False),
        "one_unit": (2, 3, 1, 1, True, True),
        "zeros": (2, 3, 3, 4, True, False),
    }
    for kind, gates, seed in (("gru", 3, 3600), ("lstm", 4, 3800)):
        tensors = {}
        for case, (batch, steps, width, hidden, bias, state) in cases.items():
            seed += 10
            layer = getattr(torch.nn, kind.upper())(width, hidden, bias=bias, batch_first=True).double()
            shapes = {"weight_ih": (gates * hidden, width), "weight_hh": (gates * hidden, hidden)}
            if bias:
                shapes |= {"bias_ih": (gates * hidden,), "bias_hh": (gates * hidden,)}
            xs = uniform((batch, steps, width), seed)
            inputs = {"xs": leaf(torch.zeros_like(xs) if case == "zeros" else xs)}
            for index, (name, shape) in enumerate(shapes.items()):
                inputs[name] = leaf(uniform(shape, seed + 1 + index, -0.7, 0.7))
            if state:
                inputs["h0"] = leaf(uniform((batch, hidden), seed + 5))
                if kind == "lstm":
                    inputs["c0"] = leaf(uniform((batch, hidden), seed + 6, -2.0, 2.0))
            parameters = {f"{name}_l0": inputs[name] for name in shapes}
            start = [inputs[name][None] for name in ("h0", "c0") if name in inputs]
            start = (tuple(start) if kind == "lstm" else start[0]) if start else None
            ys, end = torch.func.functional_call(layer, parameters, (inputs["xs"], start))
            backward(tensors, case, inputs, ys, seed + 7)
            if kind == "lstm":
                tensors[f"{case}.final"] = end[1][0]
        save(f"crates/nn/tests/golden/{kind}.safetensors", tensors)


def cross_entropy():
    one_hot = F.one_hot(integers((5,), 4011, 7), 7).double()
    probabilities = F.softmax(uniform((5, 7), 4021), 1)
    cases = {
        "indices": (uniform((5, 7), 4000, -3.0, 3.0), integers((5,), 4001, 7)),
        "one_hot": (uniform((5, 7), 4010, -3.0, 3.0), one_hot),
        "probabilities": (uniform((5, 7), 4020, -3.0, 3.0), probabilities),
        "weights": (uniform((3, 4), 4030, -3.0, 3.0), uniform((3, 4), 4031, 0.0, 2.0)),
        "large": (integers((6, 5), 4040, 2001).double() - 1000, integers((6,), 4041, 5)),
        "two_classes": (uniform((3, 2), 4050), integers((3,), 4051, 2)),
    }
    tensors = {}
    for case, (logits, targets) in cases.items():
        inputs = {"logits": leaf(logits)}
        backward(tensors, case, inputs, F.cross_entropy(inputs["logits"], targets), 0)
        tensors[f"{case}.targets"] = targets
    save("crates/nn/tests/golden/cross_entropy.safetensors", tensors)


def sgd():
    """20 steps of torch.optim.SGD, float32, on param0..param2 of 1, 7 and 33 elements.

    Initial values: uniform((n,), 5000 + j, -1, 1). The gradient of param j in step s = 1..20 is
    uniform((n,), 6000 + 10 s + j, -1, 1). Stored: initial.param<j>, grad.param<j>.step<s>, and
    <case>.param<j>.step<s> after steps 5, 10, 15 and 20.
    """
    cases = {
        "plain": {},
        "momentum": {"momentum": 0.9},
        "momentum_dampening": {"momentum": 0.9, "dampening": 0.1},
        "momentum_nesterov": {"momentum": 0.9, "nesterov": True},
        "weight_decay": {"weight_decay": 0.01},
        "momentum_weight_decay": {"momentum": 0.9, "weight_decay": 0.01},
        "momentum_dampening_weight_decay": {
            "momentum": 0.9,
            "dampening": 0.1,
            "weight_decay": 0.01,
        },
        "momentum_nesterov_weight_decay": {
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 0.01,
        },
    }
    lr, sizes, steps = 0.1, (1, 7, 33), range(1, 21)
    initial = [uniform((n,), 5000 + j, dtype=torch.float32) for j, n in enumerate(sizes)]
    grads = {
        (j, s): uniform((n,), 6000 + 10 * s + j, dtype=torch.float32)
        for j, n in enumerate(sizes)
        for s in steps
    }
    tensors = {f"initial.param{j}": p for j, p in enumerate(initial)}
    tensors |= {f"grad.param{j}.step{s}": g for (j, s), g in grads.items()}
    for case, options in cases.items():
        params = [p.clone().requires_grad_() for p in initial]
        optimizer = torch.optim.SGD(params, lr=lr, **options)
        for s in steps:
            for j, p in enumerate(params):
                p.grad = grads[j, s].clone()
            optimizer.step()
            if s % 5 == 0:
                tensors |= {f"{case}.param{j}.step{s}": p.clone() for j, p in enumerate(params)}
    options = {case: {"lr": lr} | options for case, options in cases.items()}
    save("crates/optim/tests/golden/sgd.safetensors", tensors, **options)


def mnist_cnn_sgd():
    """20 steps of SGD on the MNIST CNN, float32. The recipe (`testkit::mnist_cnn_recipe`):

    Model: conv1 5x5 1->20, relu, max-pool 2; conv2 5x5 20->50, relu, max-pool 2; flatten;
    linear1 800->500, relu; linear2 500->10; mean softmax cross entropy.

    Parameter j (in the order of `shapes`): weights uniform(shape, 7000 + j, -a, a) with
    a = sqrt(6 / (fan_in + fan_out)), fan_in = in * kernel area, fan_out = out * kernel area;
    biases the same with a = 0.1.

    Batch b = 0..3: labels integers((64,), 7200 + b, 10). Pixel (y, x) of an image is
    0.5 * unit(7100 + b, i), i its index in the batch, plus 0.5 where (y / 7) * 4 + x / 7 (whole
    numbers) is the label: a bright square whose place is the class. Sums in float64, then cast.

    Step s = 0..19 takes batch s mod 4. Optimizer: SGD lr 0.005, momentum 0.9, weight decay 1e-5.

    Stored: losses (of each step, before its update); per parameter <name> in full below 30000
    elements, else <name>.every13 (elements 0, 13, ..); <name>.sum and <name>.sum_of_squares in
    float64.
    """
    shapes = {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "linear1.weight": (500, 800),
        "linear1.bias": (500,),
        "linear2.weight": (10, 500),
        "linear2.bias": (10,),
    }
    p = {}
    for j, (name, shape) in enumerate(shapes.items()):
        area = int(np.prod(shape[2:]))
        a = (6 / ((shape[0] + shape[1]) * area)) ** 0.5 if len(shape) > 1 else 0.1
        p[name] = uniform(shape, 7000 + j, -a, a, torch.float32).requires_grad_()

    pixel = torch.arange(28)
    square = (pixel // 7)[:, None] * 4 + (pixel // 7)[None, :]
    batches = []
    for b in range(4):
        labels = integers((64,), 7200 + b, 10)
        pattern = (square[None] == labels[:, None, None])[:, None].double()
        noise = uniform((64, 1, 28, 28), 7100 + b, 0.0, 1.0)
        batches.append(((0.5 * noise + 0.5 * pattern).float(), labels))

    def forward(xs):
        ys = F.max_pool2d(F.relu(F.conv2d(xs, p["conv1.weight"], p["conv1.bias"])), 2)
        ys = F.max_pool2d(F.relu(F.conv2d(ys, p["conv2.weight"], p["conv2.bias"])), 2)
        ys = F.relu(F.linear(ys.flatten(1), p["linear1.weight"], p["linear1.bias"]))
        return F.linear(ys, p["linear2.weight"], p["linear2.bias"])

    options = {"lr": 0.005, "momentum": 0.9, "weight_decay": 1e-5}
    optimizer = torch.optim.SGD(p.values(), **options)
    losses = []
    for step in range(20):
        images, labels = batches[step % 4]
        loss = F.cross_entropy(forward(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("losses", " ".join(f"{loss:.4f}" for loss in losses))
    tensors = {"losses": torch.tensor(losses)}
    for name, t in p.items():
        t = t.detach()
        if t.numel() < 30_000:
            tensors[name] = t
        else:
            tensors[f"{name}.every13"] = t.flatten()[::13]
        tensors[f"{name}.sum"] = t.double().sum()
        tensors[f"{name}.sum_of_squares"] = (t.double() ** 2).sum()
    save("tests/golden/mnist_cnn_sgd.safetensors", tensors, optimizer=options, batch_size="64")


if __name__ == "__main__":
    torch.set_num_threads(1)
    files = (conv2d, linear, max_pool2d, relu, activations, avg_pool2d, global_avg_pool2d)
    files += (embedding, recurrent, cross_entropy, sgd, mnist_cnn_sgd)
    names = sys.argv[1:]
    unknown = set(names) - {write.__name__ for write in files}
    if unknown:
        sys.exit(f"no such files: {', '.join(sorted(unknown))}")
    for write in files:
        if not names or write.__name__ in names:
            write()
