"""Optimizers, schedules, clipping."""

import inspect

import torch

from common import save, uniform


# The optimizers' golden runs: 50 steps, float32, on param0..param2 of shape (1,), (7,), (3, 11).
#
# Initial values: uniform(shape, 5000 + j, -1, 1). The gradient of param j in step s = 1..50 is
# uniform(shape, 6000 + 10 s + j, -1, 1). Stored: <case>.param<j>.step<s> after these steps.
SHAPES, STEPS, STORED = ((1,), (7,), (3, 11)), 50, (1, 10, 25, 50)

# The same for optimizers that treat matrices otherwise, on param0..param3.
MATRICES = ((7,), (3, 11), (12, 5), (2, 3, 4))


# The same for blocks of 256 elements, with a rest.
BLOCKS = ((7,), (3, 11), (30, 20))

# Other settings for the vectors in the cases that say so.
VECTORS = {"weight_decay": 0.0, "lr_scale": 2.0}


def optimizer_runs(path, make, lr, cases, shapes=SHAPES):
    """`cases`: options of `make`; "schedule" and "groups" are ours: cosine from lr to 0 in 50 steps,
    and VECTORS."""
    tensors = {}
    for case, options in cases.items():
        options = dict(options)
        schedule, groups = options.pop("schedule", False), options.pop("groups", False)
        params = [
            uniform(shape, 5000 + j, dtype=torch.float32).requires_grad_()
            for j, shape in enumerate(shapes)
        ]
        settings = [{"params": params}]
        if groups:
            vectors = {"lr": VECTORS["lr_scale"] * lr, "weight_decay": VECTORS["weight_decay"]}
            few = [p for p in params if p.dim() < 2]
            many = [p for p in params if p.dim() >= 2]
            settings = [{"params": few} | vectors, {"params": many}]
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


class MuonAndAdamW(torch.optim.Optimizer):
    """torch.optim.Muon for matrices, AdamW for all others. Muon iterates in f32 instead of bf16,
    except with `bf16`: then as it is."""

    def __init__(self, params, lr, weight_decay=0.1, bf16=False, **options):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        source = inspect.getsource(ORTHOGONAL)
        namespace = {"torch": torch, "Tensor": torch.Tensor}
        exec(source.replace("torch.bfloat16", "torch.float32"), namespace)
        self.orthogonal = ORTHOGONAL if bf16 else namespace[ORTHOGONAL.__name__]
        self.parts = []
        for group in self.param_groups:
            for p in group["params"]:
                part = torch.optim.Muon([p], **options) if p.dim() == 2 else torch.optim.AdamW([p])
                self.parts.append((group, part))

    @torch.no_grad()
    def step(self):
        torch.optim._muon._zeropower_via_newtonschulz = self.orthogonal
        for group, part in self.parts:
            part.param_groups[0] |= {name: group[name] for name in ("lr", "weight_decay")}
            part.step()
        torch.optim._muon._zeropower_via_newtonschulz = ORTHOGONAL


def dynamic_code(signed):
    """bitsandbytes' `create_dynamic_map`: seven decades of numbers at equal distances, 0 and 1."""
    numbers = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        bounds = torch.linspace(0.1, 1, count + 1, dtype=torch.float64)
        middles = (10.0 ** (decade - 6) * (bounds[:-1] + bounds[1:]) / 2).tolist()
        numbers += middles + ([-x for x in middles] if signed else [])
    return torch.tensor(sorted(numbers), dtype=torch.float32)


class AdamW8bit(torch.optim.Optimizer):
    """arXiv 2110.02861 in blocks of 256; torch's order of the weight decay, no correction of signs."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, size=0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.betas, self.eps, self.size, self.t = betas, eps, size, 0
        self.codes = dynamic_code(True), dynamic_code(False)

    def rounded(self, x, code):
        """x as it is after its way through 8 bits."""
        if x.numel() < self.size:
            return x
        blocks = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % 256)).view(-1, 256)
        scales = blocks.abs().amax(1, keepdim=True)
        codes = torch.bucketize(blocks / scales.clamp(min=1e-38), (code[1:] + code[:-1]) / 2)
        return (scales * code[codes]).flatten()[: x.numel()].view_as(x)

    @torch.no_grad()
    def step(self):
        self.t += 1
        beta1, beta2 = self.betas
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for p in group["params"]:
                m, v = self.state[p].get("mv", (torch.zeros_like(p), torch.zeros_like(p)))
                p.mul_(1 - lr * decay)
                m = m + (1 - beta1) * (p.grad - m)
                v = beta2 * v + (1 - beta2) * p.grad * p.grad
                root = v.sqrt() / (1 - beta2**self.t) ** 0.5 + self.eps
                p -= lr / (1 - beta1**self.t) * m / root
                self.state[p]["mv"] = tuple(map(self.rounded, (m, v), self.codes))


ORTHOGONAL = torch.optim._muon._zeropower_via_newtonschulz


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
    optimizer_runs("crates/candelabrum-optim/tests/golden/sgd.safetensors", make, 0.1, cases)


def adam(make=torch.optim.Adam, name="adam"):
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-3},
        "beta1_0": {"betas": (0.0, 0.9)},
        "betas_0": {"betas": (0.0, 0.0)},
        "beta1_below_half": {"betas": (0.3, 0.9)},
        "amsgrad": {"amsgrad": True, "betas": (0.9, 0.9)},
        "amsgrad_weight_decay": {"amsgrad": True, "weight_decay": 0.1},
        "schedule": {"schedule": True},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    path = f"crates/candelabrum-optim/tests/golden/{name}.safetensors"
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
        "centered_alpha": {"centered": True, "alpha": 0.3, "eps": 1e-3},
        "centered_momentum_weight_decay": {"centered": True, "momentum": 0.5, "weight_decay": 0.1},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.RMSprop)
    optimizer_runs("crates/candelabrum-optim/tests/golden/rms_prop.safetensors", make, 0.01, cases)


def ada_grad():
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "lr_decay": {"lr_decay": 0.05},
        "initial_accumulator": {"initial_accumulator_value": 0.5, "eps": 1e-3},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.Adagrad)
    optimizer_runs("crates/candelabrum-optim/tests/golden/ada_grad.safetensors", make, 0.01, cases)


def lamb():
    cases = {
        "plain": {},
        "no_weight_decay": {"weight_decay": 0.0},
        "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-3},
        "beta1_0": {"betas": (0.0, 0.9)},
        "betas_0": {"betas": (0.0, 0.0)},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    optimizer_runs("crates/candelabrum-optim/tests/golden/lamb.safetensors", Lamb, 0.01, cases)


def lars():
    cases = {
        "plain": {},
        "no_momentum": {"momentum": 0.0},
        "trust_coefficient": {"trust_coefficient": 0.02, "weight_decay": 0.1},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    optimizer_runs("crates/candelabrum-optim/tests/golden/lars.safetensors", Lars, 1.0, cases)


def muon():
    cases = {
        "plain": {},
        "without_nesterov": {"nesterov": False, "momentum": 0.8},
        "match_rms": {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
        "coefficients": {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 12, "eps": 1e-3},
        "groups_schedule": {"groups": True, "schedule": True},
        "bf16": {"bf16": True},
    }
    path = "crates/candelabrum-optim/tests/golden/muon.safetensors"
    optimizer_runs(path, MuonAndAdamW, 0.01, cases, MATRICES)


def adafactor():
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "betas_eps": {"beta2_decay": -0.5, "eps": (1e-3, 1e-2)},
        "clipping": {"d": 1.5},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    make = one_at_a_time(torch.optim.Adafactor)
    path = "crates/candelabrum-optim/tests/golden/adafactor.safetensors"
    optimizer_runs(path, make, 0.3, cases, MATRICES)


def adamw_8bit():
    cases = {
        "plain": {},
        "weight_decay": {"weight_decay": 0.1},
        "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-3},
        "large_alone": {"size": 100},
        "groups_schedule": {"weight_decay": 0.1, "groups": True, "schedule": True},
    }
    path = "crates/candelabrum-optim/tests/golden/adamw_8bit.safetensors"
    optimizer_runs(path, AdamW8bit, 0.01, cases, BLOCKS)


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
    save("crates/candelabrum-optim/tests/golden/schedules.safetensors", tensors, lr=lr)


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
    save("crates/candelabrum-optim/tests/golden/clip.safetensors", tensors)
