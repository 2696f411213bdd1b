"""Losses but the cross entropies of classes, and pooling by attention."""

import torch
import torch.nn.functional as F

from common import backward, integers, leaf, save, uniform

FILE = "crates/candelabrum-nn/tests/golden/{}.safetensors"


def element_losses():
    """Differences in quarters, so that some are exactly 0 and exactly the bounds, and any others."""
    quarters = [integers((5, 7), seed, 9).double() / 4 for seed in (5000, 5001)]
    others = [uniform((3, 5), seed, -3.0, 3.0) for seed in (5002, 5003)]
    functions = {
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "huber": lambda xs, ts, reduction: F.huber_loss(xs, ts, delta=0.75, reduction=reduction),
        "smooth_l1": lambda xs, ts, reduction: F.smooth_l1_loss(xs, ts, beta=0.75, reduction=reduction),
    }
    tensors = {}
    for name, function in functions.items():
        for kind, (xs, ts) in {"quarters": quarters, "others": others}.items():
            for reduction in ("mean", "sum"):
                inputs = {"xs": leaf(xs), "targets": leaf(ts)}
                ys = function(*inputs.values(), reduction=reduction)
                backward(tensors, f"{name}_{kind}_{reduction}", inputs, ys, 0)
    save(FILE.format("element_losses"), tensors)


def bce_with_logits():
    special = torch.tensor([[0.0, 30.0, -30.0, 200.0], [-200.0, -0.0, 1e-9, 2.0]]).double()
    cases = {  # logits, weight of the answer yes
        "plain": (uniform((5, 3), 5010, -6.0, 6.0), None),
        "by_class": (uniform((5, 3), 5011, -6.0, 6.0), (3,)),
        "by_number": (uniform((2, 2, 3), 5012, -6.0, 6.0), (2, 2, 3)),
        "by_row": (uniform((4, 3), 5013, -6.0, 6.0), (4, 1)),
        "special": (special, None),
    }
    tensors = {}
    for index, (case, (logits, weight)) in enumerate(cases.items()):
        targets = uniform(tuple(logits.shape), 5020 + index, 0.0, 1.0)
        targets = torch.where(uniform(tuple(logits.shape), 5030 + index) > 0, targets, targets.round())
        weight = None if weight is None else uniform(weight, 5040 + index, 0.1, 4.0)
        for reduction in ("mean", "sum"):
            inputs = {"xs": leaf(logits)}
            ys = F.binary_cross_entropy_with_logits(
                inputs["xs"], targets, pos_weight=weight, reduction=reduction
            )
            backward(tensors, f"{case}_{reduction}", inputs, ys, 0)
            tensors[f"{case}_{reduction}.targets"] = targets
            if weight is not None:
                tensors[f"{case}_{reduction}.weight"] = weight
    save(FILE.format("bce_with_logits"), tensors)


def nll():
    tensors = {}
    targets = integers((6,), 5050, 5)
    for case, ignore in (("plain", None), ("ignore", int(targets[0]))):
        for reduction in ("mean", "sum"):
            inputs = {"xs": leaf(uniform((6, 5), 5051, -4.0, 0.0))}
            index = -100 if ignore is None else ignore
            ys = F.nll_loss(inputs["xs"], targets, ignore_index=index, reduction=reduction)
            backward(tensors, f"{case}_{reduction}", inputs, ys, 0)
            tensors[f"{case}_{reduction}.targets"] = targets
            if ignore is not None:
                tensors[f"{case}_{reduction}.ignore"] = torch.tensor(ignore)
    save(FILE.format("nll"), tensors)


def cosine():
    """`similarity_*` are cosines, also of vectors that are 0 or shorter than eps. The others are losses."""
    tensors = {}
    xs, ys = uniform((4, 5), 5060), uniform((4, 5), 5061)
    short = xs.clone()
    short[1], short[2] = 0.0, short[2] * 1e-3
    for case, left, eps in (("plain", xs, 1e-8), ("short", short, 0.1)):
        inputs = {"xs": leaf(left), "ys": leaf(ys)}
        result = F.cosine_similarity(inputs["xs"], inputs["ys"], dim=-1, eps=eps)
        renamed(tensors, f"similarity_{case}", inputs, result, 5062)
        tensors[f"similarity_{case}.eps"] = torch.tensor(eps, dtype=torch.float64)
    targets = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    ys = torch.stack([ys[0], xs[1] + 0.1 * ys[1], ys[2], ys[3]])
    for margin in (0.0, 0.4):
        for reduction in ("mean", "sum"):
            case = f"loss_{round(10 * margin)}_{reduction}"
            inputs = {"xs": leaf(xs), "ys": leaf(ys)}
            loss = F.cosine_embedding_loss(*inputs.values(), targets, margin, reduction=reduction)
            renamed(tensors, case, inputs, loss, 0)
            tensors |= {f"{case}.targets": targets, f"{case}.margin": torch.tensor(margin, dtype=torch.float64)}
    save(FILE.format("cosine"), tensors)


def renamed(tensors, case, inputs, result, seed):
    """As `backward`, for inputs called xs and ys: a golden file calls the result ys, so they are left and right."""
    backward(tensors, case, {"left": inputs["xs"], "right": inputs["ys"]}, result, seed)


def ctc():
    """The gradient is that of the logits, because PyTorch's one of the logarithms is right only behind a softmax."""
    cases = {  # steps, classes, blank, lengths, labels
        "plain": (7, 5, 0, (7, 7), [[1, 2, 3], [4, 1, 2]]),
        "lengths": (8, 5, 0, (8, 5, 3), [[1, 2, 3, 4], [2, 2], [4]]),
        "repeated": (9, 4, 0, (9, 7), [[1, 1, 2, 2], [3, 3, 3]]),
        "blank": (6, 4, 3, (6, 6), [[0, 1], [2, 2, 0]]),
        "no_labels": (4, 3, 0, (4, 2), [[], [1]]),
        "one_step": (1, 3, 1, (1,), [[2]]),
        "too_short": (5, 4, 0, (5, 2), [[1, 2], [3, 3, 1]]),
    }
    tensors = {}
    for index, (case, (steps, classes, blank, lengths, labels)) in enumerate(cases.items()):
        most = max(len(row) for row in labels)
        padded = torch.tensor([row + [0] * (most - len(row)) for row in labels]).reshape(len(labels), most)
        counts = torch.tensor([len(row) for row in labels])
        for reduction in ("mean", "sum"):
            name = f"{case}_{reduction}"
            inputs = {"xs": leaf(uniform((len(labels), steps, classes), 5100 + index, -3.0, 3.0))}
            log_probs = inputs["xs"].log_softmax(-1).transpose(0, 1)
            ys = F.ctc_loss(
                *(log_probs, padded, torch.tensor(lengths), counts, blank),
                reduction=reduction,
                zero_infinity=case == "too_short",
            )
            backward(tensors, name, inputs, ys, 0)
            tensors |= {f"{name}.labels": padded, f"{name}.lengths": torch.tensor(lengths)}
            tensors |= {f"{name}.counts": counts, f"{name}.config": torch.tensor([blank])}
    save(FILE.format("ctc"), tensors, config="blank")


def attention_pool():
    """The softmax of the first steps of each sequence."""
    tensors = {}
    for index, (case, lengths) in enumerate({"all": (5, 5, 5), "lengths": (5, 1, 3)}.items()):
        inputs = {
            "xs": leaf(uniform((3, 5, 4), 5200 + index)),
            "scores": leaf(uniform((3, 5), 5210 + index, -3.0, 3.0)),
        }
        hidden = torch.arange(5)[None] >= torch.tensor(lengths)[:, None]
        weights = inputs["scores"].masked_fill(hidden, float("-inf")).softmax(-1)
        backward(tensors, case, inputs, (weights[:, :, None] * inputs["xs"]).sum(1), 5220 + index)
        tensors[f"{case}.lengths"] = torch.tensor(lengths)
    save(FILE.format("attention_pool"), tensors)
