"""Networks for images: what torchvision computes from given weights."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from common import integers, save, uniform
from networks import LeNet, Xception

FOLDER = "models/tests/golden"


def fill(model, seed):
    """Sets tensor `i` of the state, in the order of names, to numbers of seed `seed + i`: those of several
    dimensions to uniform ones within sqrt(6 / n) for n inputs of an output, biases and means within 0.1, and the
    others, weights and variances of normalisations, from 0.5 to 1.5. Returns the names."""
    state = model.state_dict()
    names = sorted(name for name in state if not name.endswith("num_batches_tracked"))
    for index, name in enumerate(names):
        tensor = state[name]
        if tensor.dim() > 1:
            bound = math.sqrt(6 / (tensor.numel() / tensor.shape[0]))
            low, high = -bound, bound
        elif name.endswith(("bias", "running_mean")):
            low, high = -0.1, 0.1
        else:
            low, high = 0.5, 1.5
        tensor.copy_(uniform(tuple(tensor.shape), seed + index, low, high))
    return names


def results(tensors, name, model, images, classes, seed):
    """Stores the outputs in evaluation, and the loss in training and the norm of the gradient of each parameter, in
    the order of names."""
    xs, labels = uniform(images, seed), integers(images[:1], seed + 1, classes)
    with torch.no_grad():
        tensors[f"{name}.ys"] = model.eval()(xs)
    loss = F.cross_entropy(model.train()(xs), labels)
    parameters = dict(sorted(model.named_parameters()))
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    tensors[f"{name}.loss"] = loss
    tensors[f"{name}.norms"] = torch.stack([gradient.norm() for gradient in gradients])


def with_units(model, numbers, units, classes):
    """The last layers of AlexNet or VGG with fewer units, so that the test is fast."""
    first, second, last = numbers
    inputs = model.classifier[first].in_features
    model.classifier[first] = nn.Linear(inputs, units)
    model.classifier[second] = nn.Linear(units, units)
    model.classifier[last] = nn.Linear(units, classes)
    return model


def models():
    """Networks with 5 classes. The weights of all but the transformer come from `fill`, with seeds 20000 + 1000 k;
    the transformer's are a file of float32. Inputs and labels have the two seeds before 20000 + 1000 k."""
    import torchvision.models as zoo

    counts = {"alexnet": 61100840, "vgg11": 132863336, "vgg16_bn": 138365992, "resnet34": 21797672}
    counts |= {"resnet101": 44549160, "resnet152": 60192808, "vit_b_16": 86567656}
    counts |= {"vgg13": 133047848, "vgg16": 138357544, "vgg19": 143667240, "vgg19_bn": 143678248}
    counts |= {"vgg11_bn": 132868840, "vgg13_bn": 133053736}
    with torch.device("meta"):
        made = {name: getattr(zoo, name)() for name in counts} | {"xception": Xception(1000)}
    for name, count in (counts | {"xception": 22855952}).items():
        assert sum(p.numel() for p in made[name].parameters()) == count, name

    networks = {
        "lenet": (lambda: LeNet(5), (3, 1, 28, 28)),
        "alexnet": (lambda: with_units(zoo.alexnet(dropout=0), (1, 4, 6), 8, 5), (2, 3, 64, 70)),
        "vgg11": (lambda: with_units(zoo.vgg11(dropout=0, init_weights=False), (0, 3, 6), 8, 5), (2, 3, 32, 70)),
        "vgg16_bn": (lambda: with_units(zoo.vgg16_bn(dropout=0, init_weights=False), (0, 3, 6), 8, 5), (3, 3, 32, 32)),
        "resnet34": (lambda: zoo.resnet34(num_classes=5), (3, 3, 64, 64)),
        "resnet101": (lambda: zoo.resnet101(num_classes=5), (3, 3, 64, 64)),
        "xception": (lambda: Xception(5), (3, 3, 71, 75)),
    }
    tensors, names = {}, {}
    for index, (name, (make, images)) in enumerate(networks.items()):
        model, seed = make().double(), 20000 + 1000 * index
        names[name] = fill(model, seed)
        results(tensors, name, model, images, 5, seed - 2)
    save(f"{FOLDER}/models.safetensors", tensors, **names)

    sizes = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 6, "mlp_dim": 10}
    model = zoo.VisionTransformer(**sizes, num_classes=5)
    fill(model, 30000)
    save(f"{FOLDER}/vit_weights.safetensors", model.state_dict())
    tensors = {}
    results(tensors, "vit", model.double(), (3, 3, 8, 8), 5, 29998)
    save(f"{FOLDER}/vit.safetensors", tensors, vit=sorted(dict(model.named_parameters())))
