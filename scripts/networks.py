"""The networks with which this project is compared, as a user of PyTorch writes them.

Their parameters have the names of models/, and the order in which models/ make them.
"""

import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

VOCABULARY = 64
CHARACTERS = 96
CONTEXT = 256
WIDTH = 384
HEADS = 6


class Cnn(nn.Module):
    """SINGA's network for MNIST."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.linear1 = nn.Linear(800, 500)
        self.linear2 = nn.Linear(500, 10)

    def forward(self, xs):
        ys = self.pool(torch.relu(self.conv1(xs)))
        ys = self.pool(torch.relu(self.conv2(ys)))
        return self.linear2(torch.relu(self.linear1(ys.flatten(1))))


class Mlp(nn.Module):
    """784-1024-1024-10, on the same images."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(784, 1024)
        self.linear2 = nn.Linear(1024, 1024)
        self.linear3 = nn.Linear(1024, 10)

    def forward(self, xs):
        return self.linear3(torch.relu(self.linear2(torch.relu(self.linear1(xs)))))


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            conv = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, xs):
        ys = self.relu(self.bn1(self.conv1(xs)))
        ys = self.bn2(self.conv2(ys))
        shortcut = xs if self.downsample is None else self.downsample(xs)
        ys += shortcut
        return self.relu(ys)


class Bottleneck(nn.Module):
    """torchvision's Bottleneck, whose 3x3 convolution has the stride."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != 4 * channels:
            conv = nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(4 * channels))

    def forward(self, xs):
        ys = self.relu(self.bn1(self.conv1(xs)))
        ys = self.relu(self.bn2(self.conv2(ys)))
        ys = self.bn3(self.conv3(ys))
        shortcut = xs if self.downsample is None else self.downsample(xs)
        ys += shortcut
        return self.relu(ys)


class Resnet(nn.Module):
    """torchvision's residual networks. A small stem is a 3x3 convolution that keeps the size."""

    def __init__(self, block, counts, classes, small_stem=False):
        super().__init__()
        kernel = 3 if small_stem else 7
        stride = 1 if small_stem else 2
        self.conv1 = nn.Conv2d(3, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, padding=1)
        inputs, times = 64, 4 if block is Bottleneck else 1
        for stage, count in enumerate(counts):
            channels, blocks = 64 << stage, []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inputs, channels, stride))
                inputs = times * channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, xs):
        ys = self.maxpool(self.relu(self.bn1(self.conv1(xs))))
        ys = self.layer4(self.layer3(self.layer2(self.layer1(ys))))
        return self.fc(self.avgpool(ys).flatten(1))


def conv_norm(inputs, outputs, kernel=3, stride=1, groups=1):
    """torchvision's Conv2dNormActivation with ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """torchvision's InvertedResidual."""

    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        wide = expansion * inputs
        layers = [] if expansion == 1 else [conv_norm(inputs, wide, 1)]
        layers += [
            conv_norm(wide, wide, stride=stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, xs):
        return xs + self.conv(xs) if self.is_residual else self.conv(xs)


class MobileNetV2(nn.Module):
    """torchvision's mobilenet_v2(dropout=0.0), because masks would differ between libraries."""

    def __init__(self):
        super().__init__()
        features, inputs = [conv_norm(3, 32, stride=2)], 32
        for expansion, outputs, count, stride in [
            *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
            *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
        ]:
            for index in range(count):
                own_stride = stride if index == 0 else 1
                features.append(InvertedResidual(inputs, outputs, own_stride, expansion))
                inputs = outputs
        features.append(conv_norm(inputs, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(1280, 1000))

    def forward(self, xs):
        ys = F.adaptive_avg_pool2d(self.features(xs), 1)
        return self.classifier(ys.flatten(1))


class Gru(nn.Module):
    """A classifier of token sequences: embedding, GRU, a linear layer on the last hidden state."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.gru = nn.GRU(64, 128, batch_first=True)
        self.linear = nn.Linear(128, 10)

    def forward(self, xs):
        ys, _ = self.gru(self.embedding(xs))
        return self.linear(ys[:, -1])


class Lstm(nn.Module):
    """A language model of characters: embedding, LSTM, a linear layer at every position."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        self.lstm = nn.LSTM(64, 256, batch_first=True)
        self.linear = nn.Linear(256, CHARACTERS)

    def forward(self, xs):
        ys, _ = self.lstm(self.embedding(xs))
        return self.linear(ys)


class TransformerBlock(nn.Module):
    """A block of a transformer, with the normalisation before each branch."""

    def __init__(self, width, heads, hidden, causal, eps=1e-5):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps)
        self.up = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.down = nn.Linear(hidden, width)
        self.heads, self.causal = heads, causal

    def forward(self, xs):
        xs = xs + self.out(self.attention(self.qkv(self.norm1(xs))))
        return xs + self.down(self.gelu(self.up(self.norm2(xs))))

    def attention(self, qkv):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, 2))
        ys = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return ys.transpose(1, 2).flatten(2)


class Gpt(nn.Module):
    """GPT-2's structure. The last layer has the table of the tokens as its weight."""

    def __init__(self, blocks=6, recompute=False):
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(CHARACTERS, WIDTH))
        self.positions = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH, HEADS, 4 * WIDTH, True) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.recompute = recompute

    def forward(self, xs):
        ys = F.embedding(xs, self.tokens) + self.positions
        for block in self.blocks:
            ys = checkpoint(block, ys, use_reentrant=False) if self.recompute else block(ys)
        return F.linear(self.norm(ys), self.tokens)


class LeNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, xs):
        ys = F.avg_pool2d(self.conv1(xs).tanh(), 2)
        ys = F.avg_pool2d(self.conv2(ys).tanh(), 2)
        return self.fc3(self.fc2(self.fc1(ys.flatten(1)).tanh()).tanh())


def large_classifier(inputs, units, classes, places):
    """The three linear layers at the end of AlexNet and of VGG, at their places in the list of layers. Masks would
    differ between libraries, so nothing is dropped out."""
    layers = [nn.Identity() for _ in range(7)]
    for place, sizes in zip(places, [(inputs, units), (units, units), (units, classes)]):
        layers[place] = nn.Linear(*sizes)
        if place != places[2]:
            layers[place + 1] = nn.ReLU(inplace=True)
    return nn.Sequential(*layers)


class AlexNet(nn.Module):
    """torchvision's alexnet(dropout=0)."""

    def __init__(self, classes):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, 4, 2), relu, nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, padding=2), relu, nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, padding=1), relu),
            *(nn.Conv2d(384, 256, 3, padding=1), relu),
            *(nn.Conv2d(256, 256, 3, padding=1), relu, nn.MaxPool2d(3, 2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = large_classifier(256 * 36, 4096, classes, (1, 4, 6))

    def forward(self, xs):
        return self.classifier(self.avgpool(self.features(xs)).flatten(1))


class Vgg(nn.Module):
    """torchvision's vgg11 to vgg19, without and with batch norm, with dropout=0."""

    COUNTS = {11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4]}

    def __init__(self, depth, batch_norm, classes):
        super().__init__()
        layers, inputs = [], 3
        for count, channels in zip(self.COUNTS[depth], [64, 128, 256, 512, 512]):
            for _ in range(count):
                layers.append(nn.Conv2d(inputs, channels, 3, padding=1))
                layers += [nn.BatchNorm2d(channels)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                inputs = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = large_classifier(512 * 49, 4096, classes, (0, 3, 6))

    def forward(self, xs):
        return self.classifier(self.avgpool(self.features(xs)).flatten(1))


class Separable(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, xs):
        return self.pointwise(self.conv1(xs))


class XceptionBlock(nn.Module):
    def __init__(self, channels, smaller, rectified=True):
        super().__init__()
        layers = []
        for inputs, outputs in zip(channels, channels[1:]):
            layers += [nn.ReLU(), Separable(inputs, outputs), nn.BatchNorm2d(outputs)]
        layers = layers if rectified else layers[1:]
        self.rep = nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if smaller else []))
        if smaller:
            self.skip = nn.Conv2d(channels[0], channels[-1], 1, stride=2, bias=False)
            self.skipbn = nn.BatchNorm2d(channels[-1])

    def forward(self, xs):
        return self.rep(xs) + (self.skipbn(self.skip(xs)) if hasattr(self, "skip") else xs)


class Xception(nn.Module):
    """Written after figure 5 of the paper, with the names and paddings of the common ports."""

    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 32, 3, stride=2, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, bias=False), nn.BatchNorm2d(64)
        entry = [((64, 128, 128), True, False), ((128, 256, 256), True), ((256, 728, 728), True)]
        plans = entry + 8 * [((728, 728, 728, 728), False)] + [((728, 728, 1024), True)]
        for number, plan in enumerate(plans, 1):
            setattr(self, f"block{number}", XceptionBlock(*plan))
        self.conv3, self.bn3 = Separable(1024, 1536), nn.BatchNorm2d(1536)
        self.conv4, self.bn4 = Separable(1536, 2048), nn.BatchNorm2d(2048)
        self.fc = nn.Linear(2048, classes)

    def forward(self, xs):
        ys = self.bn2(self.conv2(self.bn1(self.conv1(xs)).relu())).relu()
        for number in range(1, 13):
            ys = getattr(self, f"block{number}")(ys)
        ys = self.bn4(self.conv4(self.bn3(self.conv3(ys)).relu())).relu()
        return self.fc(ys.mean((2, 3)))


class VitTables(nn.Module):
    """The class token and the positions of torchvision's VisionTransformer."""

    def __init__(self, patches, width):
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, 1 + patches, width))

    def forward(self, xs):
        return torch.cat([self.class_token.expand(len(xs), -1, -1), xs], 1) + self.pos_embedding


class Vit(nn.Module):
    """torchvision's VisionTransformer(dropout=0) of layers that have the names of models/vit.rs."""

    def __init__(self, side, patch, width, layers, heads, hidden, classes):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.tables = VitTables((side // patch) ** 2, width)
        blocks = (TransformerBlock(width, heads, hidden, False, 1e-6) for _ in range(layers))
        self.layers = nn.Sequential(*blocks)
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, xs):
        ys = self.tables(self.conv_proj(xs).flatten(2).transpose(1, 2))
        return self.head(self.ln(self.layers(ys)[:, 0]))


class CharRnn(nn.Module):
    """One-hot characters, as SINGA's."""

    def __init__(self, kind, vocabulary, hidden, layers=1):
        super().__init__()
        self.vocabulary = vocabulary
        self.rnn = getattr(nn, kind)(vocabulary, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, tokens):
        xs = F.one_hot(tokens, self.vocabulary).to(self.linear.weight.dtype)
        return self.linear(self.rnn(xs)[0])


def lengths_of(tokens):
    """The steps of each sequence without the padding at its end."""
    steps = torch.arange(1, tokens.shape[-1] + 1)
    return ((tokens != 0) * steps).amax(-1)


def packed(xs, lengths):
    return pack_padded_sequence(xs, lengths, batch_first=True, enforce_sorted=False)


class TextGru(nn.Module):
    """The hidden state at the end of each text."""

    def __init__(self, vocabulary, embedding, hidden, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, tokens):
        state = self.gru(packed(self.embedding(tokens), lengths_of(tokens)))[1]
        return self.linear(state[0])


class Attention(nn.Module):
    """The mean of a sequence's steps, weighted by how well they match a context vector."""

    def __init__(self, width, units):
        super().__init__()
        self.projection = nn.Linear(width, units)
        self.context = nn.Linear(units, 1, bias=False)

    def forward(self, xs, lengths):
        is_padding = torch.arange(xs.shape[1]) >= lengths[:, None]
        scores = self.context(self.projection(xs).tanh()).squeeze(-1)
        weights = scores.masked_fill(is_padding, -torch.inf).softmax(1)
        return (weights.unsqueeze(-1) * xs).sum(1)


class Encoder(nn.Module):
    """Sequences (N, T, in) -> (N, 2 hidden)."""

    def __init__(self, width, hidden, units):
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
        self.attention = Attention(2 * hidden, units)

    def forward(self, xs, lengths):
        ys, _ = pad_packed_sequence(self.gru(packed(xs, lengths))[0], batch_first=True)
        return self.attention(ys, lengths)


class Han(nn.Module):
    """Documents (N, sentences, words), of which all sentences with words are one batch."""

    def __init__(self, vocabulary, embedding, hidden, units, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.words = Encoder(embedding, hidden, units)
        self.sentences = Encoder(2 * hidden, hidden, units)
        self.linear = nn.Linear(2 * hidden, classes)

    def forward(self, tokens):
        rows = tokens.flatten(0, 1)
        lengths = lengths_of(rows)
        filled = lengths.nonzero().squeeze(1)
        words = self.words(self.embedding(rows[filled]), lengths[filled])
        vectors = words.new_zeros(len(rows), words.shape[1]).index_copy(0, filled, words)
        counts = lengths_of((lengths > 0).reshape(tokens.shape[:2]))
        return self.linear(self.sentences(vectors.unflatten(0, tokens.shape[:2]), counts))


def resnet(block, counts, classes=1000, small_stem=False):
    return lambda _: Resnet(block, counts, classes, small_stem)


IMAGES, SMALL_IMAGES, TEXT = ("images", 3, 224), ("images", 3, 32), 64

# What makes each network of the sizes of its data, and its batches (`INPUTS` of bench_step.py). The same names are in
# benches/player/src/networks.rs.
NETWORKS = {
    "cnn": (lambda _: Cnn(), ("images", 1, 28)),
    "mlp": (lambda _: Mlp(), ("rows",)),
    "lenet": (lambda _: LeNet(10), ("images", 1, 28)),
    "alexnet-224": (lambda _: AlexNet(1000), IMAGES),
    "resnet18": (resnet(Block, [2, 2, 2, 2], 10), SMALL_IMAGES),
    "resnet18-small": (resnet(Block, [2, 2, 2, 2], 10, small_stem=True), SMALL_IMAGES),
    "resnet18-224": (resnet(Block, [2, 2, 2, 2]), IMAGES),
    "resnet34-224": (resnet(Block, [3, 4, 6, 3]), IMAGES),
    "resnet50-224": (resnet(Bottleneck, [3, 4, 6, 3]), IMAGES),
    "resnet101-224": (resnet(Bottleneck, [3, 4, 23, 3]), IMAGES),
    "resnet152-224": (resnet(Bottleneck, [3, 8, 36, 3]), IMAGES),
    "mobilenet-v2-224": (lambda _: MobileNetV2(), IMAGES),
    "xception-299": (lambda _: Xception(1000), ("images", 3, 299)),
    "vit-tiny": (lambda _: Vit(32, 4, 192, 6, 3, 768, 10), SMALL_IMAGES),
    "vit-b16-224": (lambda _: Vit(224, 16, 768, 12, 12, 3072, 1000), IMAGES),
    "gru": (lambda _: Gru(), ("sequences",)),
    "lstm": (lambda _: Lstm(), ("texts", TEXT)),
    "gpt": (lambda data: Gpt(data.blocks, data.recompute), ("texts", CONTEXT)),
    "char-rnn": (lambda data: CharRnn("LSTM", data.vocabulary, 128), ("texts", TEXT)),
    "text-gru": (lambda data: TextGru(data.vocabulary, 64, 64, data.classes), ("padded", 40)),
    "han": (lambda data: Han(data.vocabulary, 64, 50, 100, data.classes), ("padded", 8, 20)),
}
for depth in Vgg.COUNTS:
    for suffix, batch_norm in [("", False), ("-bn", True)]:
        make = functools.partial(lambda *sizes: Vgg(*sizes[:2], 1000), depth, batch_norm)
        NETWORKS[f"vgg{depth}{suffix}-224"] = (make, IMAGES)
