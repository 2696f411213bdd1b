"""Normalisations, softmax, losses, residual sums."""

import torch
import torch.nn.functional as F

from common import backward, integers, leaf, save, uniform


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
        "sequences": (uniform((2, 3, 5), 4060, -3.0, 3.0), integers((2, 3), 4061, 5)),
        "sequences_of_weights": (uniform((3, 2, 4), 4070), uniform((3, 2, 4), 4071, 0.0, 2.0)),
    }
    tensors = {}
    for case, (logits, targets) in cases.items():
        inputs = {"logits": leaf(logits)}
        # PyTorch has the classes in the second dimension.
        ts = targets.movedim(-1, 1) if targets.is_floating_point() else targets
        loss = F.cross_entropy(inputs["logits"].movedim(-1, 1), ts)
        backward(tensors, case, inputs, loss, 0)
        tensors[f"{case}.targets"] = targets
    save("crates/candelabrum-nn/tests/golden/cross_entropy.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/batch_norm2d.safetensors", tensors, config="training, relu")


def normalised(inputs, seed, training, relu, weight="weight", bias="bias"):
    """The batch normalisation of inputs["xs"], and the running statistics before it."""
    channels = inputs["xs"].shape[1]
    mean = uniform((channels,), seed, -0.5, 0.5)
    var = uniform((channels,), seed + 1, 0.5, 1.5)
    before = {"mean": mean.clone(), "var": var.clone()}
    ys = F.batch_norm(inputs["xs"], mean, var, inputs[weight], inputs[bias], training)
    return (F.relu(ys) if relu else ys), before


def affine(channels, seed, prefix=""):
    return {
        f"{prefix}weight": leaf(uniform((channels,), seed, 0.5, 1.5)),
        f"{prefix}bias": leaf(uniform((channels,), seed + 1)),
    }


def batch_norm2d_add():
    # case: input, training, relu
    cases = {
        "plain": (uniform((3, 2, 4, 5), 8120), True, False),
        "relu": (uniform((2, 3, 7, 6), 8130), True, True),
        "vectors": (uniform((7, 5), 8140), True, True),
        "evaluation": (uniform((3, 4, 5, 3), 8150), False, True),
    }
    tensors = {}
    for index, (case, (xs, training, relu)) in enumerate(cases.items()):
        seed = 8121 + 10 * index
        inputs = {"xs": leaf(xs)} | affine(xs.shape[1], seed)
        inputs["residual"] = leaf(uniform(xs.shape, seed + 2))
        ys, before = normalised(inputs, seed + 3, training, False)
        ys = ys + inputs["residual"]
        backward(tensors, case, inputs, F.relu(ys) if relu else ys, seed + 5)
        tensors |= {f"{case}.{name}": values for name, values in before.items()}
        tensors[f"{case}.config"] = torch.tensor([int(training), int(relu)])
    save("crates/candelabrum-nn/tests/golden/batch_norm2d_add.safetensors", tensors, config="training, relu")


def batch_norm2d_conv2d():
    # case: input, weight, training, relu, stride, padding, groups
    cases = {
        "tiles": ((2, 16, 6, 5), (17, 16, 3, 3), True, True, 1, 1, 1),
        "depthwise": ((2, 5, 7, 6), (5, 1, 3, 3), True, True, 2, 1, 5),
        "pointwise": ((2, 6, 9, 8), (3, 6, 1, 1), True, True, 1, 0, 1),
        "strided": ((2, 9, 16, 17), (2, 9, 3, 3), True, False, 2, 1, 1),
        "small": ((9, 3, 2, 2), (4, 3, 3, 3), True, True, 1, 1, 1),
        "evaluation": ((2, 3, 6, 6), (4, 3, 3, 3), False, True, 1, 1, 1),
    }
    tensors = {}
    for index, (case, (xs, weight, training, relu, stride, padding, groups)) in enumerate(cases.items()):
        seed = 8400 + 10 * index
        inputs = {"xs": leaf(uniform(xs, seed))} | affine(xs[1], seed + 1, "norm_")
        inputs["weight"] = leaf(uniform(weight, seed + 3))
        inputs["bias"] = leaf(uniform(weight[:1], seed + 4))
        hs, before = normalised(inputs, seed + 5, training, relu, "norm_weight", "norm_bias")
        ys = F.conv2d(hs, inputs["weight"], inputs["bias"], stride, padding, groups=groups)
        backward(tensors, case, inputs, ys, seed + 7)
        tensors |= {f"{case}.{name}": values for name, values in before.items()}
        config = [int(training), int(relu), stride, padding, groups]
        tensors[f"{case}.config"] = torch.tensor(config)
    config = "training, relu, stride, padding, groups"
    save("crates/candelabrum-nn/tests/golden/batch_norm2d_conv2d.safetensors", tensors, config=config)


def batch_norm2d_layer():
    """Five steps of torch.nn.BatchNorm2d, float32, on batches uniform((4, 3, 5, 5), 8200 + s, -s, 2)
    for s = 1..5; stored: running_mean, running_var, and ys in evaluation for the batch of s = 1."""
    layer = torch.nn.BatchNorm2d(3)
    batches = [uniform((4, 3, 5, 5), 8200 + s, -s, 2.0, torch.float32) for s in range(1, 6)]
    for xs in batches:
        layer(xs)
    ys = layer.eval()(batches[0])
    tensors = {"running_mean": layer.running_mean, "running_var": layer.running_var, "ys": ys}
    save("crates/candelabrum-nn/tests/golden/batch_norm2d_layer.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/layer_norm.safetensors", layer_norm, config="dimensions of a row")
    save("crates/candelabrum-nn/tests/golden/rms_norm.safetensors", rms_norm, config="dimensions of a row")


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
        save(f"crates/candelabrum-nn/tests/golden/{name}.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/cross_entropy_options.safetensors", tensors)


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
    save("crates/candelabrum-nn/tests/golden/add.safetensors", tensors, config="relu")
