"""Writes the golden files of the tests with PyTorch. Run by hand, from anywhere:

    pip install torch safetensors numpy
    python scripts/golden.py            # all files
    python scripts/golden.py relu sgd   # those of these functions

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


def exact(t):
    """The values that f32 can hold, so that both dtypes start from the same numbers."""
    return t.float().double()


def batch_norm2d():
    # case: input, training, affine, relu, eps
    cases = {
        "plain": (uniform((3, 2, 4, 5), 8000), True, False, False, 1e-5),
        "affine": (uniform((3, 5, 7, 3), 8010), True, True, False, 1e-5),
        "relu": (uniform((4, 3, 6, 6), 8020), True, True, True, 1e-3),
        "one_image": (uniform((1, 3, 5, 7), 8030), True, True, True, 1e-5),
        "large_planes": (uniform((2, 2, 33, 37), 8040), True, True, True, 1e-5),
        "vectors": (uniform((7, 5), 8050), True, True, True, 1e-5),
        "all_equal": (torch.full((3, 2, 3, 3), 0.75, dtype=torch.float64), True, True, False, 1e-5),
        "large_mean": (exact(1e4 + uniform((4, 2, 6, 7), 8070, -1.7, 1.7)), True, True, False, 1e-5),
        "large_values": (exact(uniform((3, 2, 6, 6), 8080, -1e6, 1e6)), True, True, True, 1e-5),
        "evaluation": (uniform((3, 4, 5, 3), 8090), False, True, False, 1e-5),
        "evaluation_relu": (uniform((2, 3, 6, 6), 8100), False, True, True, 1e-5),
        "evaluation_plain": (uniform((2, 3), 8110), False, False, False, 1e-5),
    }
    tensors = {}
    for index, (case, (xs, training, affine, relu, eps)) in enumerate(cases.items()):
        seed = 8001 + 10 * index
        channels = xs.shape[1]
        inputs = {"xs": leaf(xs)}
        if affine:
            inputs["weight"] = leaf(uniform((channels,), seed, 0.5, 1.5))
            inputs["bias"] = leaf(uniform((channels,), seed + 1))
        mean = uniform((channels,), seed + 2, -0.5, 0.5)
        var = uniform((channels,), seed + 3, 0.5, 1.5)
        tensors |= {f"{case}.mean_before": mean.clone(), f"{case}.var_before": var.clone()}
        ys = F.batch_norm(
            inputs["xs"], mean, var, inputs.get("weight"), inputs.get("bias"), training, 0.1, eps
        )
        tensors |= {f"{case}.mean_after": mean, f"{case}.var_after": var}
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 4)
        tensors[f"{case}.config"] = torch.tensor([int(training), int(relu)])
        tensors[f"{case}.eps"] = torch.tensor(eps, dtype=torch.float64)
    save("crates/nn/tests/golden/batch_norm2d.safetensors", tensors, config="training, relu")


def batch_norm2d_layer():
    """Five steps of torch.nn.BatchNorm2d, float32, on batches uniform((4, 3, 5, 5), 8200 + s, -s, 2)
    for s = 1..5; stored: running_mean, running_var, and ys in evaluation for the batch of s = 1."""
    layer = torch.nn.BatchNorm2d(3)
    batches = [uniform((4, 3, 5, 5), 8200 + s, -s, 2.0, torch.float32) for s in range(1, 6)]
    for xs in batches:
        layer(xs)
    ys = layer.eval()(batches[0])
    tensors = {"running_mean": layer.running_mean, "running_var": layer.running_var, "ys": ys}
    save("crates/nn/tests/golden/batch_norm2d_layer.safetensors", tensors)


def row_norms():
    # case: input, dimensions of a row, weight, bias, eps
    cases = {
        "plain": (uniform((3, 5), 8300), 1, False, False, 1e-5),
        "affine": (uniform((4, 7), 8310), 1, True, True, 1e-5),
        "no_bias": (uniform((2, 3, 33), 8320), 1, True, False, 1e-3),
        "two_dims": (uniform((3, 4, 5), 8330), 2, True, True, 1e-5),
        "vector": (uniform((9,), 8340), 1, True, True, 1e-5),
        "many_rows": (uniform((37, 6), 8350), 1, True, True, 1e-5),
        "long_rows": (uniform((2, 1100), 8360), 1, True, True, 1e-5),
        "all_equal": (torch.full((3, 6), -0.75, dtype=torch.float64), 1, True, True, 1e-5),
        "large_mean": (exact(1e4 + uniform((3, 50), 8380, -1.7, 1.7)), 1, True, True, 1e-5),
        "large_values": (exact(uniform((3, 7), 8390, -1e6, 1e6)), 1, True, True, 1e-5),
        "one_number": (uniform((3, 1), 8400), 1, True, True, 1e-5),
    }
    layer_norm, rms_norm = {}, {}
    for index, (case, (xs, dims, weight, bias, eps)) in enumerate(cases.items()):
        seed = 8301 + 10 * index
        row = xs.shape[-dims:]
        inputs = {"xs": leaf(xs)}
        if weight:
            inputs["weight"] = leaf(uniform(row, seed, 0.5, 1.5))
        ys = F.rms_norm(inputs["xs"], row, inputs.get("weight"), eps)
        backward(rms_norm, case, inputs, ys, seed + 2)
        if bias:
            inputs["bias"] = leaf(uniform(row, seed + 1))
        ys = F.layer_norm(inputs["xs"], row, inputs.get("weight"), inputs.get("bias"), eps)
        backward(layer_norm, case, inputs, ys, seed + 2)
        for tensors in (layer_norm, rms_norm):
            tensors[f"{case}.config"] = torch.tensor([dims])
            tensors[f"{case}.eps"] = torch.tensor(eps, dtype=torch.float64)
    save("crates/nn/tests/golden/layer_norm.safetensors", layer_norm, config="dimensions of a row")
    save("crates/nn/tests/golden/rms_norm.safetensors", rms_norm, config="dimensions of a row")


def softmax():
    infinite = uniform((3, 4), 8530)
    infinite[0, 1] = infinite[1, 0] = infinite[1, 3] = -float("inf")
    cases = {
        "rows": uniform((5, 7), 8500, -3.0, 3.0),
        "vector": uniform((6,), 8510),
        "three_dims": uniform((2, 3, 33), 8520, -5.0, 5.0),
        "minus_infinity": infinite,
        "all_equal": torch.full((3, 5), 12.5, dtype=torch.float64),
        "large": integers((6, 5), 8550, 2001).double() - 1000,
        "one_class": uniform((4, 1), 8560),
    }
    for name, function in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        tensors = {}
        for index, (case, xs) in enumerate(cases.items()):
            inputs = {"xs": leaf(xs)}
            ys = function(inputs["xs"], -1)
            if case == "minus_infinity" and name == "log_softmax":
                continue  # the gradient fed in times minus infinity is no number to compare
            backward(tensors, case, inputs, ys, 8570 + index)
        save(f"crates/nn/tests/golden/{name}.safetensors", tensors)


def cross_entropy_options():
    # case: logits, targets, label smoothing, ignored class
    one_hot = F.one_hot(integers((5,), 8611, 7), 7).double()
    ignored = integers((6,), 8621, 5)
    ignored[1] = ignored[4] = -100
    cases = {
        "smoothed": (uniform((5, 7), 8600, -3.0, 3.0), integers((5,), 8601, 7), 0.125, None),
        "smoothed_one_hot": (uniform((5, 7), 8610, -3.0, 3.0), one_hot, 0.25, None),
        "ignored": (uniform((6, 5), 8620, -3.0, 3.0), ignored, 0.0, -100),
        "ignored_class": (uniform((9, 3), 8630), integers((9,), 8631, 3), 0.0, 1),
        "both": (uniform((6, 5), 8640, -3.0, 3.0), ignored, 0.125, -100),
        "weights": (uniform((3, 4), 8650), uniform((3, 4), 8651, 0.0, 2.0), 0.5, None),
        "only_smoothing": (uniform((3, 4), 8660), integers((3,), 8661, 4), 1.0, None),
        "large": (integers((6, 5), 8670, 2001).double() - 1000, integers((6,), 8671, 5), 0.125, None),
        "all_equal": (torch.full((4, 6), 2.5).double(), integers((4,), 8681, 6), 0.125, None),
    }
    tensors = {}
    for case, (logits, targets, smoothing, ignore) in cases.items():
        inputs = {"logits": leaf(logits)}
        ignoring = {} if ignore is None else {"ignore_index": ignore}
        loss = F.cross_entropy(inputs["logits"], targets, label_smoothing=smoothing, **ignoring)
        backward(tensors, case, inputs, loss, 0)
        tensors[f"{case}.targets"] = targets
        tensors[f"{case}.smoothing"] = torch.tensor(smoothing, dtype=torch.float64)
        if ignore is not None:
            tensors[f"{case}.ignore"] = torch.tensor(ignore)
    save("crates/nn/tests/golden/cross_entropy_options.safetensors", tensors)


def add():
    tensors = {}
    for index, (case, relu, whole) in enumerate(
        [("plain", False, False), ("relu", True, False), ("exact_zeros", True, True)]
    ):
        seed = 8700 + 10 * index

        def values(seed):
            return integers((3, 2, 5), seed, 3).double() - 1 if whole else uniform((3, 2, 5), seed)

        inputs = {"xs": leaf(values(seed)), "ys_in": leaf(values(seed + 1))}
        ys = inputs["xs"] + inputs["ys_in"]
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 2)
        tensors[f"{case}.config"] = torch.tensor([int(relu)])
    save("crates/nn/tests/golden/add.safetensors", tensors, config="relu")


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
    files = (
        *(conv2d, linear, max_pool2d, relu, cross_entropy, sgd, mnist_cnn_sgd),
        *(batch_norm2d, batch_norm2d_layer, row_norms, softmax, cross_entropy_options, add),
    )
    known = {write.__name__: write for write in files}
    for name in sys.argv[1:] or known:
        known[name]()
