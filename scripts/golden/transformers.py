"""What language models are made of: attention, gated units, the loss of the last layer."""

import torch
import torch.nn.functional as F

from common import backward, integers, leaf, save, uniform


def rotated(xs, base, offset):
    """LLaMA's rotary embedding of (N, heads, T, D), as in transformers' `apply_rotary_pos_emb`."""
    dim = xs.shape[-1]
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = (offset + torch.arange(xs.shape[-2], dtype=torch.float64))[:, None] * speeds
    angles = torch.cat((angles, angles), -1)
    first, second = xs.chunk(2, -1)
    return xs * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


def attend(q, k, v, heads, kv_heads, causal, mask, rotary):
    """`scaled_dot_product_attention` of (N, T, heads D), which has its own kernel for each mask."""
    split = lambda xs, heads: xs.unflatten(-1, (heads, -1)).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    if rotary:
        q, k = rotated(q, *rotary), rotated(k, *rotary)
    if causal and mask is not None:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        mask, causal = mask.masked_fill(hidden, -torch.inf), False
    ys = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
    return ys.transpose(1, 2).flatten(-2)


def attention():
    hides = integers((2, 1, 5, 5), 9102, 3) == 0
    hides[..., 0] = False
    hiding = uniform((2, 1, 5, 5), 9103).masked_fill(hides, -torch.inf)
    # case: N, Tq, Tk (or None: one packed tensor), heads, kv heads, D, causal, mask, rotary
    cases = {
        "plain": (2, 5, None, 2, 2, 3, False, None, None),
        "causal": (2, 67, None, 2, 2, 4, True, None, None),
        "grouped": (1, 7, None, 6, 2, 5, True, None, None),
        "rotary": (2, 9, None, 2, 1, 6, True, None, (10000.0, 0)),
        "rotary_from_7": (1, 5, None, 2, 2, 4, False, None, (50.0, 7)),
        "masked": (2, 5, None, 4, 2, 3, False, hiding, None),
        "masked_causal": (2, 5, None, 4, 1, 3, True, hiding, None),
        "biased": (2, 5, None, 3, 3, 3, False, uniform((1, 3, 1, 5), 9110), None),
        "cross": (2, 5, 3, 2, 2, 3, False, None, None),
        "cross_grouped": (2, 3, 70, 4, 2, 3, False, uniform((3, 70), 9111), None),
    }
    tensors = {}
    for index, (case, sizes) in enumerate(cases.items()):
        n, queries, keys, heads, kv_heads, dim, causal, mask, rotary = sizes
        seed, columns = 9200 + 10 * index, (heads * dim, kv_heads * dim, kv_heads * dim)
        if keys is None:
            inputs = {"qkv": leaf(uniform((n, queries, sum(columns)), seed, -2.0, 2.0))}
            parts = inputs["qkv"].split(columns, -1)
        else:
            rows = (queries, keys, keys)
            shapes = zip("qkv", rows, columns)
            inputs = {
                name: leaf(uniform((n, rows, width), seed + i, -2.0, 2.0))
                for i, (name, rows, width) in enumerate(shapes)
            }
            parts = inputs.values()
        ys = attend(*parts, heads, kv_heads, causal, mask, rotary)
        backward(tensors, case, inputs, ys, seed + 5)
        tensors[f"{case}.config"] = torch.tensor([heads, kv_heads, int(causal)])
        if mask is not None:
            tensors[f"{case}.mask"] = mask
        if rotary:
            tensors[f"{case}.rotary"] = torch.tensor(rotary, dtype=torch.float64)
    save("crates/candelabrum-nn/tests/golden/attention.safetensors", tensors, config="heads, kv heads, causal")


def swiglu():
    cases = {"rows": (uniform((3, 10), 9300, -3.0, 3.0)), "batch": (uniform((2, 3, 4), 9301, -40, 40))}
    tensors = {}
    for index, (case, xs) in enumerate(cases.items()):
        inputs = {"xs": leaf(xs)}
        gate, value = inputs["xs"].chunk(2, -1)
        backward(tensors, case, inputs, F.silu(gate) * value, 9310 + index)
    save("crates/candelabrum-nn/tests/golden/swiglu.safetensors", tensors)


def linear_cross_entropy():
    # case: the shape of xs before its features, classes, bias, smoothing, ignored class
    cases = {
        "plain": ((5,), 7, True, 0.0, None),
        "sequences": ((2, 3), 4, False, 0.0, None),
        "smoothed": ((5,), 7, True, 0.25, None),
        "ignored": ((2, 5), 3, True, 0.0, 1),
        "smoothed_ignored": ((7,), 5, False, 0.125, 2),
    }
    tensors = {}
    for index, (case, (rows, classes, bias, smoothing, ignored)) in enumerate(cases.items()):
        seed = 9400 + 10 * index
        inputs = {"xs": leaf(uniform((*rows, 6), seed)), "weight": leaf(uniform((classes, 6), seed + 1))}
        if bias:
            inputs["bias"] = leaf(uniform((classes,), seed + 2))
        labels = integers(rows, seed + 3, classes)
        logits = F.linear(inputs["xs"], inputs["weight"], inputs.get("bias")).flatten(0, -2)
        options = {} if ignored is None else {"ignore_index": ignored}
        loss = F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing, **options)
        backward(tensors, case, inputs, loss, 0)
        tensors |= {f"{case}.labels": labels, f"{case}.smoothing": torch.tensor(smoothing).double()}
        if ignored is not None:
            tensors[f"{case}.ignore"] = torch.tensor(ignored)
    save("crates/candelabrum-nn/tests/golden/linear_cross_entropy.safetensors", tensors)


def linear_add():
    tensors = {}
    for index, (case, rows, bias) in enumerate([("rows", (5,), True), ("batch", (2, 3), False)]):
        seed = 9500 + 10 * index
        inputs = {"xs": leaf(uniform((*rows, 4), seed)), "weight": leaf(uniform((7, 4), seed + 1))}
        inputs["residual"] = leaf(uniform((*rows, 7), seed + 2))
        if bias:
            inputs["bias"] = leaf(uniform((7,), seed + 3))
        ys = inputs["residual"] + F.linear(inputs["xs"], inputs["weight"], inputs.get("bias"))
        backward(tensors, case, inputs, ys, seed + 4)
    save("crates/candelabrum-nn/tests/golden/linear_add.safetensors", tensors)


def feed_forward():
    tensors = {}
    swiglu = lambda z: F.silu(z[..., :4]) * z[..., 4:]
    cases = [("gelu", (5,), 4, F.gelu, True), ("relu", (2, 3), 4, F.relu, False), ("swiglu", (2, 3), 8, swiglu, True)]
    for index, (case, rows, width, units, bias) in enumerate(cases):
        seed = 9550 + 10 * index
        inputs = {"xs": leaf(uniform((*rows, 3), seed)), "up": leaf(uniform((width, 3), seed + 1))}
        inputs |= {"down": leaf(uniform((7, 4), seed + 2)), "residual": leaf(uniform((*rows, 7), seed + 3))}
        if bias:
            inputs |= {"up_bias": leaf(uniform((width,), seed + 4)), "down_bias": leaf(uniform((7,), seed + 5))}
        hidden = units(F.linear(inputs["xs"], inputs["up"], inputs.get("up_bias")))
        ys = inputs["residual"] + F.linear(hidden, inputs["down"], inputs.get("down_bias"))
        backward(tensors, case, inputs, ys, seed + 6)
    save("crates/candelabrum-nn/tests/golden/feed_forward.safetensors", tensors)


def embedding_with_positions():
    inputs = {"weight": leaf(uniform((7, 3), 9600)), "positions": leaf(uniform((6, 3), 9601))}
    indices = integers((4, 5), 9602, 7)
    ys = F.embedding(indices, inputs["weight"]) + inputs["positions"][:5]
    tensors = {"tokens.indices": indices}
    backward(tensors, "tokens", inputs, ys, 9603)
    save("crates/candelabrum-nn/tests/golden/embedding_with_positions.safetensors", tensors)


def transformer_layers():
    """torch.nn.TransformerEncoderLayer and torch.nn.MultiheadAttention, with our names."""
    torch.manual_seed(0)
    tensors = {}

    def store(case, inputs, ours, ys, seed):
        dys = uniform(tuple(ys.shape), seed)
        gradients = torch.autograd.grad(ys, [*inputs.values(), *(p for p, _ in ours.values())], dys)
        count = len(inputs)
        tensors.update({f"{case}.{name}": t for name, t in inputs.items()})
        tensors.update({f"{case}.d{name}": g for name, g in zip(inputs, gradients)})
        tensors.update({f"{case}.ys": ys, f"{case}.dys": dys})
        for (name, (parameter, rows)), g in zip(ours.items(), gradients[count:]):
            tensors[f"{case}.param.{name}"], tensors[f"{case}.dparam.{name}"] = parameter[rows], g[rows]

    every = slice(None)
    for index, causal in enumerate([False, True]):
        layer = torch.nn.TransformerEncoderLayer(
            12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        torch.nn.init.normal_(layer.self_attn.in_proj_bias)
        torch.nn.init.normal_(layer.norm1.weight), torch.nn.init.normal_(layer.norm2.bias)
        attention = layer.self_attn
        ours = {
            "attention.qkv.weight": (attention.in_proj_weight, every),
            "attention.qkv.bias": (attention.in_proj_bias, every),
            "attention.out.weight": (attention.out_proj.weight, every),
            "attention.out.bias": (attention.out_proj.bias, every),
            **{f"norm{i}.{k}": (p, every) for i in (1, 2) for k, p in
               (layer.norm1 if i == 1 else layer.norm2).named_parameters()},
            **{f"up.{k}": (p, every) for k, p in layer.linear1.named_parameters()},
            **{f"down.{k}": (p, every) for k, p in layer.linear2.named_parameters()},
        }
        xs = leaf(uniform((2, 5, 12), 9700 + index))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        ys = layer(xs, mask, is_causal=True) if causal else layer(xs)
        store("causal" if causal else "block", {"xs": xs}, ours, ys, 9710 + index)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours = {"out.weight": (layer.out_proj.weight, every), "out.bias": (layer.out_proj.bias, every)}
    for i, name in enumerate("qkv"):
        rows = slice(8 * i, 8 * i + 8)
        ours |= {f"{name}.weight": (layer.in_proj_weight, rows), f"{name}.bias": (layer.in_proj_bias, rows)}
    inputs = {"xs": leaf(uniform((2, 3, 8), 9720)), "memory": leaf(uniform((2, 5, 8), 9721))}
    ys, _ = layer(inputs["xs"], inputs["memory"], inputs["memory"], need_weights=False)
    store("cross", inputs, ours, ys, 9722)
    save("crates/candelabrum-nn/tests/golden/transformer_layers.safetensors", tensors)
