"""RNN, GRU and LSTM: one layer, several, both directions, packed sequences."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from common import backward, leaf, save, uniform


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
        save(f"crates/candelabrum-nn/tests/golden/{kind}.safetensors", tensors)


def lstm_cell_state():
    """Both results of `nn.LSTM`, one after the other: all hidden states, then the final cell state."""
    batch, steps, width, hidden = 3, 4, 2, 5
    layer = torch.nn.LSTM(width, hidden, batch_first=True).double()
    inputs = {"xs": leaf(uniform((batch, steps, width), 4000))}
    shapes = {
        "weight_ih": (4 * hidden, width),
        "weight_hh": (4 * hidden, hidden),
        "bias_ih": (4 * hidden,),
        "bias_hh": (4 * hidden,),
    }
    for index, (name, shape) in enumerate(shapes.items()):
        inputs[name] = leaf(uniform(shape, 4001 + index, -0.7, 0.7))
    inputs["h0"] = leaf(uniform((batch, hidden), 4005))
    inputs["c0"] = leaf(uniform((batch, hidden), 4006, -2.0, 2.0))
    parameters = {f"{name}_l0": inputs[name] for name in shapes}
    start = (inputs["h0"][None], inputs["c0"][None])
    ys, (_, c) = torch.func.functional_call(layer, parameters, (inputs["xs"], start))
    tensors = {}
    backward(tensors, "both", inputs, torch.cat([ys.flatten(), c.flatten()]), 4007)
    save("crates/candelabrum-nn/tests/golden/lstm_cell_state.safetensors", tensors)


def rnn():
    """`nn.RNN` of one layer, with both of its functions."""
    tensors, seed = {}, 4100
    for nonlinearity in ("tanh", "relu"):
        for case, bias, state in (("plain", True, False), ("state", True, True), ("no_bias", False, True)):
            seed += 10
            layer = torch.nn.RNN(4, 7, nonlinearity=nonlinearity, bias=bias, batch_first=True).double()
            inputs = {"xs": leaf(uniform((3, 5, 4), seed))}
            shapes = {"weight_ih": (7, 4), "weight_hh": (7, 7)}
            if bias:
                shapes |= {"bias_ih": (7,), "bias_hh": (7,)}
            for index, (name, shape) in enumerate(shapes.items()):
                inputs[name] = leaf(uniform(shape, seed + 1 + index, -0.7, 0.7))
            if state:
                inputs["h0"] = leaf(uniform((3, 7), seed + 5))
            parameters = {f"{name}_l0": inputs[name] for name in shapes}
            start = inputs["h0"][None] if state else None
            ys, _ = torch.func.functional_call(layer, parameters, (inputs["xs"], start))
            backward(tensors, f"{nonlinearity}_{case}", inputs, ys, seed + 6)
    save("crates/candelabrum-nn/tests/golden/rnn.safetensors", tensors)


def stacked_recurrent():
    """Layers above each other, in one direction or both, with and without lengths. `ys` are all hidden states, then
    the final hidden and cell states, one after the other. Parameters have PyTorch's names."""
    width, hidden, batch, steps = 3, 4, 4, 6
    lengths = torch.tensor([3, 6, 1, 4])
    tensors, seed = {}, 4200
    for kind in ("RNN", "GRU", "LSTM"):
        for layers, both, packed, state in (
            *((1, True, False, False), (1, True, True, True), (1, False, True, False)),
            *((2, False, False, True), (2, True, True, False), (3, True, True, True)),
        ):
            seed += 40
            case = f"{kind}_{layers}_{int(both)}_{int(packed)}_{int(state)}"
            layer = getattr(torch.nn, kind)(width, hidden, layers, bidirectional=both, batch_first=True)
            layer = layer.double()
            inputs = {"xs": leaf(uniform((batch, steps, width), seed))}
            for index, (name, parameter) in enumerate(layer.named_parameters()):
                inputs[name] = leaf(uniform(tuple(parameter.shape), seed + 1 + index, -0.7, 0.7))
            parameters = {name: tensor for name, tensor in inputs.items() if name != "xs"}
            start = None
            if state:
                shape = (layers * (2 if both else 1), batch, hidden)
                inputs["h0"] = start = leaf(uniform(shape, seed + 38))
                if kind == "LSTM":
                    inputs["c0"] = leaf(uniform(shape, seed + 39))
                    start = (start, inputs["c0"])
            xs = inputs["xs"]
            if packed:
                xs = pack_padded_sequence(xs, lengths, batch_first=True, enforce_sorted=False)
                tensors[f"{case}.lengths"] = lengths
            ys, end = torch.func.functional_call(layer, parameters, (xs, start))
            if packed:
                ys, _ = pad_packed_sequence(ys, batch_first=True, total_length=steps)
            ends = end if kind == "LSTM" else (end,)
            ys = torch.cat([tensor.flatten() for tensor in (ys, *ends)])
            backward(tensors, case, inputs, ys, seed + 37)
    save(
        "crates/candelabrum-nn/tests/golden/stacked_recurrent.safetensors",
        tensors,
        names="kind, layers, both directions, lengths, initial state",
    )
