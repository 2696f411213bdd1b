"""Convolution, linear layers, pooling, activations, embedding."""

import torch
import torch.nn.functional as F

from common import backward, integers, leaf, save, uniform


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
        "tiles": ((2, 17, 7, 6), (18, 17, 3, 3), (1, 1), (1, 1), (1, 1), 1, True, True, False),
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
    save("crates/candelabrum-nn/tests/golden/conv2d.safetensors", tensors, config=order)


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
    save("crates/candelabrum-nn/tests/golden/linear.safetensors", tensors, config="relu")


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
    save("crates/candelabrum-nn/tests/golden/max_pool2d.safetensors", tensors, config=order)


def relu():
    xs = torch.cat([torch.tensor([0.0, -0.0, 1.0, -1.0, float("nan")]).double(), uniform((6,), 3000)])
    tensors, inputs = {}, {"xs": leaf(xs)}
    backward(tensors, "relu", inputs, F.relu(inputs["xs"]), 3001)
    save("crates/candelabrum-nn/tests/golden/relu.safetensors", tensors)


def activations():
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 6.0, 100.0, -100.0, 1e-30, inf, -inf, nan]).double()
    xs = torch.cat([special, uniform((40,), 3100, -8.0, 8.0)])
    functions = {
        "gelu": F.gelu,
        "gelu_tanh": lambda xs: F.gelu(xs, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "relu6": F.relu6,
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
    save("crates/candelabrum-nn/tests/golden/activations.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/avg_pool2d.safetensors", tensors, config=order)


def global_avg_pool2d():
    tensors = {}
    for index, (case, shape) in enumerate({"plain": (2, 3, 5, 7), "one": (3, 2, 1, 1)}.items()):
        inputs = {"xs": leaf(uniform(shape, 3400 + 10 * index))}
        ys = F.adaptive_avg_pool2d(inputs["xs"], 1).flatten(1)
        backward(tensors, case, inputs, ys, 3405 + 10 * index)
    save("crates/candelabrum-nn/tests/golden/global_avg_pool2d.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/embedding.safetensors", tensors, config="padding_idx or nothing")
