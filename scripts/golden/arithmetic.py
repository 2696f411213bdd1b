"""Sums and products with broadcasting, multiples, masks."""

import torch
import torch.nn.functional as F

from common import backward, integers, leaf, save, uniform

PAIRS = {
    "bias": ((2, 3, 5), (5,)),
    "positions": ((2, 3, 5), (3, 5)),
    "by_batch": ((2, 3, 5), (2, 1, 1)),
    "by_channel": ((2, 3, 4, 2), (3, 1, 1)),
    "inner": ((2, 3, 4, 2), (2, 1, 4, 1)),
    "outer": ((4, 1), (1, 3)),
    "left": ((5,), (2, 3, 5)),
    "scalar": ((2, 3), ()),
    "long": ((70, 3), (3,)),
}


def add_broadcast():
    tensors = {}
    for index, (case, (left, right)) in enumerate(PAIRS.items()):
        seed, relu = 9200 + 10 * index, index % 2 == 1
        inputs = {"xs": leaf(uniform(left, seed)), "ys_in": leaf(uniform(right, seed + 1))}
        ys = inputs["xs"] + inputs["ys_in"]
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 2)
        tensors[f"{case}.config"] = torch.tensor([int(relu)])
    save("crates/candelabrum-nn/tests/golden/add_broadcast.safetensors", tensors, config="relu")


def mul():
    tensors = {}
    for index, (case, (left, right)) in enumerate(PAIRS.items()):
        seed = 9400 + 10 * index
        inputs = {"xs": leaf(uniform(left, seed)), "ys_in": leaf(uniform(right, seed + 1))}
        backward(tensors, case, inputs, inputs["xs"] * inputs["ys_in"], seed + 2)
    save("crates/candelabrum-nn/tests/golden/mul.safetensors", tensors)


def scale():
    tensors = {}
    for index, factor in enumerate([0.125, -3.7, 0.0]):
        seed, case = 9600 + 10 * index, f"case{index}"
        inputs = {"xs": leaf(uniform((3, 5), seed))}
        backward(tensors, case, inputs, inputs["xs"] * factor, seed + 1)
        tensors[f"{case}.factor"] = torch.tensor(factor, dtype=torch.float64)
    save("crates/candelabrum-nn/tests/golden/scale.safetensors", tensors)


def masked_fill():
    tensors = {}
    shapes = {"causal": ((2, 3, 4, 4), (4, 4)), "rows": ((2, 3, 5), (2, 1, 5)), "all": ((3, 5), (3, 5))}
    for index, (case, (shape, of_mask)) in enumerate(shapes.items()):
        seed, value = 9700 + 10 * index, -1.5 - index
        inputs = {"xs": leaf(uniform(shape, seed))}
        mask = integers(of_mask, seed + 1, 2)
        backward(tensors, case, inputs, inputs["xs"].masked_fill(mask.bool(), value), seed + 2)
        tensors[f"{case}.mask"] = mask
        tensors[f"{case}.value"] = torch.tensor(value, dtype=torch.float64)
    save("crates/candelabrum-nn/tests/golden/masked_fill.safetensors", tensors)
