"""Writes the golden files of the tests with PyTorch. Run by hand, from anywhere:

    pip install torch safetensors numpy
    python scripts/golden.py [NAME ...]      all files, or those of these names

Inputs come from an integer hash, implemented identically in crates/testkit/src/random.rs, so that
both sides make the same numbers without a file:

    mix(z)                   the output function of SplitMix64
    hash(seed, i)          = mix(seed * 0x9E3779B97F4A7C15 + i + 1)           modulo 2^64
    unit(seed, i)          = (hash(seed, i) >> 40) / 2^24                     in [0, 1)
    uniform(.., lo, hi)[i] = lo + (hi - lo) * unit(seed, i)                   in float64, then cast
    integers(.., n)[i]     = (hash(seed, i) >> 32) mod n

Files: crates/nn/tests/golden/*.safetensors (operations: computed in float64, `<case>.<name>`, with
`<case>.config` as integers), crates/optim/tests/golden/*.safetensors (50 steps of each optimizer,
the schedules, clipping), and tests/golden/mnist_cnn_sgd.safetensors (recipe at `mnist_cnn_sgd`).
Versions and hyper-parameters are in the metadata of each file.
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


# The optimizers' golden runs: 50 steps, float32, on param0..param2 of shape (1,), (7,), (3, 11).
#
# Initial values: uniform(shape, 5000 + j, -1, 1). The gradient of param j in step s = 1..50 is
# uniform(shape, 6000 + 10 s + j, -1, 1). Stored: <case>.param<j>.step<s> after these steps.
SHAPES, STEPS, STORED = ((1,), (7,), (3, 11)), 50, (1, 10, 25, 50)

# Other settings for the vectors, the first two parameters, in the cases that say so.
VECTORS = {"weight_decay": 0.0, "lr_scale": 2.0}


def optimizer_runs(path, make, lr, cases):
    """`cases`: options of `make`; "schedule" and "groups" are ours: cosine from lr to 0 in 50 steps,
    and VECTORS."""
    tensors = {}
    for case, options in cases.items():
        options = dict(options)
        schedule, groups = options.pop("schedule", False), options.pop("groups", False)
        params = [
            uniform(shape, 5000 + j, dtype=torch.float32).requires_grad_()
            for j, shape in enumerate(SHAPES)
        ]
        settings = [{"params": params}]
        if groups:
            vectors = {"lr": VECTORS["lr_scale"] * lr, "weight_decay": VECTORS["weight_decay"]}
            settings = [{"params": params[:2]} | vectors, {"params": params[2:]}]
        optimizer = make(settings, lr=lr, **options)
        if schedule:
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for s in range(1, STEPS + 1):
            for j, p in enumerate(params):
                p.grad = uniform(p.shape, 6000 + 10 * s + j, dtype=torch.float32)
            optimizer.step()
            if schedule:
                scheduler.step()
            if s in STORED:
                tensors |= {f"{case}.param{j}.step{s}": p.clone() for j, p in enumerate(params)}
    options = {case: {"lr": lr} | options for case, options in cases.items()}
    save(path, tensors, vectors=VECTORS, **options)


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 1904.00962; the trust ratio is 1 where a norm is 0."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.betas, self.eps, self.t = betas, eps, 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        beta1, beta2 = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m, v = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p))
                m = beta1 * m + (1 - beta1) * p.grad
                v = beta2 * v + (1 - beta2) * p.grad**2
                self.state[p] = {"m": m, "v": v}
                m, v = m / (1 - beta1**self.t), v / (1 - beta2**self.t)
                r = m / (v.sqrt() + self.eps) + group["weight_decay"] * p
                norms = p.norm().item(), r.norm().item()
                trust = norms[0] / norms[1] if min(norms) > 0 else 1.0
                p -= group["lr"] * trust * r


class Lars(torch.optim.Optimizer):
    """Algorithm 1 of arXiv 1708.03888; the trust ratio is 1 where a norm is 0."""

    def __init__(self, params, lr, momentum=0.9, trust_coefficient=0.001, weight_decay=0.0005):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.momentum, self.trust_coefficient = momentum, trust_coefficient

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for p in group["params"]:
                norms = p.norm().item(), p.grad.norm().item()
                trust = 1.0
                if min(norms) > 0:
                    trust = self.trust_coefficient * norms[0] / (norms[1] + decay * norms[0])
                v = self.state[p].get("v", torch.zeros_like(p))
                v = self.momentum * v + lr * trust * (p.grad + decay * p)
                self.state[p] = {"v": v}
                p -= v


def one_at_a_time(optimizer):
    """torch's plain code, not its fused or grouped one."""
    return lambda params, **options: optimizer(params, foreach=False, **options)


def sgd():
    momentum, dampening = {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.1}
    nesterov, decay = {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.01}
    cases = {
        "plain": {},
        "momentum": momentum,
        "momentum_dampening": dampening,
        "momentum_nesterov": nesterov,
        "weight_decay": decay,
        "momentum_weight_decay": momentum | decay,
        "momentum_dampening_weight_decay": dampening | decay,
        "momentum_nesterov_weight_decay": nesterov | decay,
        "momentum_schedule": momentum | {"schedule": True},
        "momentum_groups_schedule": momentum | decay | {"groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.SGD)
    optimizer_runs("crates/optim/tests/golden/sgd.safetensors", make, 0.1, cases)


def adam(make=torch.optim.Adam, name="adam"):
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-3},
        "amsgrad": {"amsgrad": True, "betas": (0.9, 0.9)},
        "amsgrad_weight_decay": {"amsgrad": True, "weight_decay": 0.1},
        "schedule": {"schedule": True},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    path = f"crates/optim/tests/golden/{name}.safetensors"
    optimizer_runs(path, one_at_a_time(make), 0.01, cases)


def adamw():
    adam(torch.optim.AdamW, "adamw")


def rms_prop():
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "alpha_eps": {"alpha": 0.9, "eps": 1e-3},
        "momentum": {"momentum": 0.9},
        "centered": {"centered": True},
        "centered_momentum_weight_decay": {"centered": True, "momentum": 0.5, "weight_decay": 0.1},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.RMSprop)
    optimizer_runs("crates/optim/tests/golden/rms_prop.safetensors", make, 0.01, cases)


def ada_grad():
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "lr_decay": {"lr_decay": 0.05},
        "initial_accumulator": {"initial_accumulator_value": 0.5, "eps": 1e-3},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.Adagrad)
    optimizer_runs("crates/optim/tests/golden/ada_grad.safetensors", make, 0.01, cases)


def lamb():
    cases = {
        "plain": {},
        "no_weight_decay": {"weight_decay": 0.0},
        "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-3},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    optimizer_runs("crates/optim/tests/golden/lamb.safetensors", Lamb, 0.01, cases)


def lars():
    cases = {
        "plain": {},
        "no_momentum": {"momentum": 0.0},
        "trust_coefficient": {"trust_coefficient": 0.02, "weight_decay": 0.1},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    optimizer_runs("crates/optim/tests/golden/lars.safetensors", Lars, 1.0, cases)


def schedules():
    """Rates of steps 0..59, float64, of torch.optim.lr_scheduler; SINGA's as its formula."""
    s = torch.optim.lr_scheduler

    def warm_then_cosine(optimizer):
        parts = [s.LinearLR(optimizer, 0.1, 1.0, 10), s.CosineAnnealingLR(optimizer, 50, 0.01)]
        return s.SequentialLR(optimizer, parts, [10])

    def one_cycle(optimizer, **options):
        return s.OneCycleLR(optimizer, 0.5, 60, cycle_momentum=False, **options)

    cases = {
        "constant": lambda o: s.ConstantLR(o, 1.0),
        "step": lambda o: s.StepLR(o, 7, 0.3),
        "multi_step": lambda o: s.MultiStepLR(o, [5, 17, 17, 40], 0.5),
        "exponential": lambda o: s.ExponentialLR(o, 0.9),
        "cosine": lambda o: s.CosineAnnealingLR(o, 59, 0.001),
        "cosine_and_up_again": lambda o: s.CosineAnnealingLR(o, 20),
        "linear": lambda o: s.LinearLR(o, 1 / 3, 1.0, 25),
        "linear_decay": lambda o: s.LinearLR(o, 1.0, 0.1, 59),
        "warm_up_cosine": warm_then_cosine,
        "one_cycle": one_cycle,
        "one_cycle_linear": lambda o: one_cycle(o, anneal_strategy="linear", pct_start=0.25),
        "one_cycle_three_phase": lambda o: one_cycle(o, three_phase=True, div_factor=10.0),
        "one_cycle_linear_three_phase": lambda o: one_cycle(
            o, three_phase=True, anneal_strategy="linear", final_div_factor=100.0
        ),
    }
    lr, steps, tensors = 0.2, range(60), {}
    for case, make in cases.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        scheduler, rates = make(optimizer), []
        for _ in steps:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        tensors[case] = torch.tensor(rates, dtype=torch.float64)
    singa = {
        "singa_exponential": [lr * 0.5 ** (step / 8) for step in steps],
        "singa_staircase": [lr * 0.5 ** (step // 8) for step in steps],
    }
    tensors |= {case: torch.tensor(rates, dtype=torch.float64) for case, rates in singa.items()}
    save("crates/optim/tests/golden/schedules.safetensors", tensors, lr=lr)


def clip():
    """Gradients uniform(shape, 5100 + j, -2, 2), their norm, and what is left of them."""
    cases = {
        "norm": lambda params: torch.nn.utils.clip_grad_norm_(params, 1.5, foreach=False),
        "norm_large": lambda params: torch.nn.utils.clip_grad_norm_(params, 100.0, foreach=False),
        "value": lambda params: torch.nn.utils.clip_grad_value_(params, 0.5, foreach=False),
    }
    tensors = {}
    for case, apply in cases.items():
        params = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
        for j, p in enumerate(params):
            p.grad = uniform(p.shape, 5100 + j, -2.0, 2.0, torch.float32)
        norm = apply(params)
        if norm is not None:
            tensors[f"{case}.norm"] = norm
        tensors |= {f"{case}.param{j}": p.grad for j, p in enumerate(params)}
    save("crates/optim/tests/golden/clip.safetensors", tensors)


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


FILES = (
    *(conv2d, linear, max_pool2d, relu, cross_entropy),
    *(sgd, adam, adamw, rms_prop, ada_grad, lamb, lars, schedules, clip),
    mnist_cnn_sgd,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1:] or [write.__name__ for write in FILES]
    unknown = set(names) - {write.__name__ for write in FILES}
    if unknown:
        sys.exit(f"no such file: {', '.join(sorted(unknown))}")
    for write in FILES:
        if write.__name__ in names:
            write()
