"""Convolutions of sequences, transposed and separable ones, normalisations by groups and by neighbours, and
adaptive pooling."""

import torch
import torch.nn.functional as F

from common import backward, leaf, save, uniform

FOLDER = "crates/candelabrum-nn/tests/golden"


def conv1d():
    # case: input, weight, stride, padding, dilation, groups, bias, relu
    cases = {
        "plain": ((2, 3, 9), (4, 3, 3), 1, 0, 1, 1, False, False),
        "bias_relu": ((3, 2, 7), (5, 2, 2), 1, 0, 1, 1, True, True),
        "all": ((2, 4, 23), (6, 2, 3), 2, 2, 3, 2, True, True),
        "depthwise": ((2, 5, 11), (5, 1, 5), 1, 2, 1, 5, False, False),
        "pointwise": ((9, 3, 4), (2, 3, 1), 1, 0, 1, 1, True, False),
        "one_position": ((3, 4, 1), (2, 4, 3), 1, 1, 1, 1, True, False),
        "long": ((2, 17, 130), (18, 17, 5), 1, 2, 1, 1, True, True),
    }
    tensors = {}
    for index, (case, (x, w, stride, padding, dilation, groups, bias, relu)) in enumerate(cases.items()):
        seed = 11000 + 10 * index
        inputs = {"xs": leaf(uniform(x, seed)), "weight": leaf(uniform(w, seed + 1))}
        if bias:
            inputs["bias"] = leaf(uniform(w[:1], seed + 2))
        ys = F.conv1d(inputs["xs"], inputs["weight"], inputs.get("bias"), stride, padding, dilation, groups)
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 3)
        tensors[f"{case}.config"] = torch.tensor([stride, padding, dilation, groups, int(relu)])
    save(f"{FOLDER}/conv1d.safetensors", tensors, config="stride, padding, dilation, groups, relu")


def conv_transpose2d():
    # case: input, weight, stride, padding, output padding, dilation, groups, bias, relu
    one, none = (1, 1), (0, 0)
    cases = {
        "plain": ((2, 3, 4, 5), (3, 4, 3, 3), one, none, none, one, 1, False, False),
        "bias_relu": ((3, 2, 3, 4), (2, 5, 2, 3), one, none, none, one, 1, True, True),
        "twice": ((2, 3, 5, 4), (3, 2, 4, 4), (2, 2), one, none, one, 1, True, False),
        "output_padding": ((2, 2, 4, 3), (2, 3, 3, 3), (2, 3), one, (1, 2), one, 1, True, True),
        "dilation": ((2, 2, 4, 5), (2, 2, 3, 2), one, (2, 1), none, (2, 3), 1, True, False),
        "groups": ((2, 6, 3, 4), (6, 2, 3, 3), (1, 2), one, none, one, 3, True, True),
        "depthwise": ((2, 4, 5, 5), (4, 1, 3, 3), (2, 2), one, one, one, 4, False, False),
        "pointwise": ((2, 5, 4, 3), (5, 7, 1, 1), one, none, none, one, 1, True, True),
        "one_pixel": ((9, 4, 1, 1), (4, 3, 4, 4), one, none, none, one, 1, True, False),
        "cropped": ((9, 3, 2, 2), (3, 2, 3, 3), one, (1, 1), none, one, 1, True, False),
        "all": ((2, 4, 5, 6), (4, 3, 3, 2), (2, 3), (2, 1), (1, 0), (2, 2), 2, True, True),
        "tiles": ((2, 17, 7, 6), (17, 18, 3, 3), one, one, none, one, 1, True, True),
    }
    tensors = {}
    for index, (case, spec) in enumerate(cases.items()):
        x, w, stride, padding, more, dilation, groups, bias, relu = spec
        seed = 11100 + 10 * index
        inputs = {"xs": leaf(uniform(x, seed)), "weight": leaf(uniform(w, seed + 1))}
        if bias:
            inputs["bias"] = leaf(uniform((w[1] * groups,), seed + 2))
        ys = F.conv_transpose2d(
            inputs["xs"], inputs["weight"], inputs.get("bias"), stride, padding, more, groups, dilation
        )
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 3)
        config = [*stride, *padding, *more, *dilation, groups, int(relu)]
        tensors[f"{case}.config"] = torch.tensor(config)
    order = "stride y, x; padding y, x; output padding y, x; dilation y, x; groups; relu"
    save(f"{FOLDER}/conv_transpose2d.safetensors", tensors, config=order)


def separable_conv2d():
    """Two layers of torch.nn one after the other, as in Xception, with stride 2 and padding 1."""
    inputs = {
        "xs": leaf(uniform((2, 3, 7, 6), 11300)),
        "depthwise": leaf(uniform((3, 1, 3, 3), 11301)),
        "pointwise": leaf(uniform((5, 3, 1, 1), 11302)),
    }
    hs = F.conv2d(inputs["xs"], inputs["depthwise"], None, 2, 1, groups=3)
    tensors = {}
    backward(tensors, "plain", inputs, F.conv2d(hs, inputs["pointwise"]), 11303)
    save(f"{FOLDER}/separable_conv2d.safetensors", tensors)


def group_norm():
    # case: input, groups, weight and bias, eps
    exact = (1024 + uniform((2, 4, 5, 5), 11430, -1.7, 1.7)).float().double()
    cases = {
        "plain": (uniform((2, 6, 3, 5), 11400), 3, False, 1e-5),
        "affine": (uniform((3, 8, 4, 3), 11410), 2, True, 1e-5),
        "one_group": (uniform((2, 3, 7, 6), 11420), 1, True, 1e-3),
        "large_mean": (exact, 2, True, 1e-5),
        "each_channel": (uniform((2, 5, 6, 7), 11440), 5, True, 1e-5),
        "vectors": (uniform((5, 6), 11450), 2, True, 1e-5),
        "sequences": (uniform((2, 4, 9), 11460), 2, True, 1e-5),
        "large_planes": (uniform((1, 2, 33, 37), 11470), 1, True, 1e-5),
        "all_equal": (torch.full((2, 4, 3, 3), 0.75, dtype=torch.float64), 2, True, 1e-5),
    }
    tensors = {}
    for index, (case, (xs, groups, affine, eps)) in enumerate(cases.items()):
        seed = 11401 + 10 * index
        inputs = {"xs": leaf(xs)}
        if affine:
            inputs["weight"] = leaf(uniform(xs.shape[1:2], seed, 0.5, 1.5))
            inputs["bias"] = leaf(uniform(xs.shape[1:2], seed + 1))
        ys = F.group_norm(inputs["xs"], groups, inputs.get("weight"), inputs.get("bias"), eps)
        if case == "each_channel":
            weight, bias = inputs["weight"], inputs["bias"]
            instance = F.instance_norm(inputs["xs"], None, None, weight, bias, True, 0.1, eps)
            assert torch.allclose(instance, ys, 1e-12, 1e-12)
        backward(tensors, case, inputs, ys, seed + 2)
        tensors[f"{case}.config"] = torch.tensor([groups])
        tensors[f"{case}.eps"] = torch.tensor(eps, dtype=torch.float64)
    save(f"{FOLDER}/group_norm.safetensors", tensors, config="groups")


def local_response_norm():
    # case: input, size, alpha, beta, k
    cases = {
        "defaults": (uniform((2, 7, 3, 4), 11500, -9.0, 9.0), 5, 1e-4, 0.75, 1.0),
        "paper": (uniform((2, 9, 3, 3), 11510, -9.0, 9.0), 5, 5e-4, 0.75, 2.0),
        "even": (uniform((2, 6, 4, 2), 11520), 4, 0.5, 0.75, 1.0),
        "wide": (uniform((1, 3, 5, 5), 11530), 9, 1.0, 0.75, 0.5),
        "one": (uniform((2, 4, 3, 3), 11540), 1, 2.0, 0.5, 1.0),
        "other_power": (uniform((2, 5, 6), 11550), 3, 1.5, 1.25, 2.0),
        "zeros": (torch.zeros((1, 4, 3, 3), dtype=torch.float64), 3, 1.0, 0.75, 1.0),
        "one_channel": (uniform((2, 1, 3, 3), 11570), 2, 1.0, 0.75, 1.0),
    }
    tensors = {}
    for index, (case, (xs, size, *constants)) in enumerate(cases.items()):
        inputs = {"xs": leaf(xs)}
        ys = F.local_response_norm(inputs["xs"], size, *constants)
        backward(tensors, case, inputs, ys, 11501 + 10 * index)
        tensors[f"{case}.config"] = torch.tensor([size])
        tensors[f"{case}.constants"] = torch.tensor(constants, dtype=torch.float64)
    order = "config: size; constants: alpha, beta, k"
    save(f"{FOLDER}/local_response_norm.safetensors", tensors, config=order)


def adaptive_avg_pool2d():
    cases = {
        "divided": ((2, 3, 6, 8), (3, 2)),
        "overlapping": ((2, 2, 7, 5), (3, 4)),
        "repeated": ((1, 2, 2, 1), (7, 7)),
        "larger": ((2, 1, 3, 5), (4, 7)),
        "same": ((2, 2, 3, 4), (3, 4)),
        "one": ((3, 2, 5, 4), (1, 1)),
    }
    tensors = {}
    for index, (case, (shape, out)) in enumerate(cases.items()):
        inputs = {"xs": leaf(uniform(shape, 11600 + 10 * index))}
        ys = F.adaptive_avg_pool2d(inputs["xs"], out)
        backward(tensors, case, inputs, ys, 11605 + 10 * index)
        tensors[f"{case}.config"] = torch.tensor(out)
    save(f"{FOLDER}/adaptive_avg_pool2d.safetensors", tensors, config="height, width")


def batch_norm1d_layer():
    """Three steps of torch.nn.BatchNorm1d, float32, on batches uniform((4, 3, 5), 11700 + s, -s, 2) for s = 1..3;
    stored: running_mean, running_var, ys of the last step, and eval_ys for the batch of s = 1."""
    layer = torch.nn.BatchNorm1d(3)
    batches = [uniform((4, 3, 5), 11700 + s, -s, 2.0, torch.float32) for s in range(1, 4)]
    for xs in batches:
        ys = layer(xs)
    tensors = {"running_mean": layer.running_mean, "running_var": layer.running_var, "ys": ys}
    tensors["eval_ys"] = layer.eval()(batches[0])
    save(f"{FOLDER}/batch_norm1d_layer.safetensors", tensors)
