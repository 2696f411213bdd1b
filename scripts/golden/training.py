"""A training run of the MNIST CNN."""

import numpy as np
import torch
import torch.nn.functional as F

from common import integers, save, uniform


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
