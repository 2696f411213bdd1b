"""Weights as users of PyTorch save them, and what their models compute with them."""

import torch
from torch import nn

from common import integers, save, uniform


class Images(nn.Module):
    """A residual block with a downsampled input, as torchvision's, and a head."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(6)
        self.downsample = nn.Sequential(nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(6, 5))

    def forward(self, xs):
        xs = self.bn1(self.conv1(xs)).relu()
        ys = (self.bn2(self.conv2(xs)) + self.downsample(xs)).relu()
        return self.classifier(ys.mean((2, 3)))


class Texts(nn.Module):
    """A transformer's block below an LSTM."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True)
        self.lstm = nn.LSTM(8, 7, batch_first=True)
        self.head = nn.Linear(7, 11)

    def forward(self, tokens):
        return self.head(self.lstm(self.block(self.wte(tokens)))[0])


def weights():
    """`state_dict` of DDP in float32 after three steps of training, so running statistics are no zeros, and
    of a model in bfloat16 whose last weight lies as (in, out), as GPT-2's. Results are of evaluation."""
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(uniform((4, 3, 8, 8), 9800 + step, -1.0, 3.0, torch.float32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    save("crates/candelabrum-nn/tests/golden/weights_images.safetensors", state)

    model_of_texts = Texts().bfloat16()
    state = model_of_texts.state_dict()
    state["head.weight"] = state["head.weight"].T
    save("crates/candelabrum-nn/tests/golden/weights_texts.safetensors", state)

    with torch.no_grad():
        images = model.eval()(uniform((2, 3, 8, 8), 9810, dtype=torch.float32))
        texts = model_of_texts.float().eval()(integers((2, 5), 9811, 11))
    results = {"images": images, "texts": texts}
    save("crates/candelabrum-nn/tests/golden/weights_results.safetensors", results)
