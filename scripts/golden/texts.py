"""The networks of texts in models/: weights by PyTorch's names, and what PyTorch computes with them."""

import torch
from torch import nn

from common import integers, save, uniform
from networks import CharRnn, TextGru


class Attention(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.projection = nn.Linear(width, units)
        self.context = nn.Linear(units, 1, bias=False)

    def forward(self, xs):
        return (self.context(self.projection(xs).tanh()).softmax(0) * xs).sum(0)


class Encoder(nn.Module):
    """One sequence (T, in) -> (2 hidden)."""

    def __init__(self, width, hidden, units):
        super().__init__()
        self.gru = nn.GRU(width, hidden, bidirectional=True)
        self.attention = Attention(2 * hidden, units)

    def forward(self, xs):
        return self.attention(self.gru(xs)[0])


class Han(nn.Module):
    """Sentence by sentence and document by document, without any padding."""

    def __init__(self, vocabulary=11, embedding=4, hidden=3, units=5, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.words = Encoder(embedding, hidden, units)
        self.sentences = Encoder(2 * hidden, hidden, units)
        self.linear = nn.Linear(2 * hidden, classes)

    def sentence(self, tokens):
        if not tokens.any():
            return self.linear.weight.new_zeros(self.linear.in_features)
        return self.words(self.embedding(tokens[: tokens.nonzero().max() + 1]))

    def document(self, tokens):
        count = tokens.any(1).nonzero().max() + 1
        return self.sentences(torch.stack([self.sentence(row) for row in tokens[:count]]))

    def forward(self, tokens):
        return self.linear(torch.stack([self.document(rows) for rows in tokens]))


def padded(tokens, lengths):
    """0 behind the lengths. The tokens before them are not 0."""
    return (tokens + 1) * (torch.arange(tokens.shape[-1]) < torch.tensor(lengths)[..., None])


def texts():
    """In float64. Gradients are those of the mean cross entropy."""
    documents = padded(
        integers((3, 4, 5), 5303, 10), [[3, 5, 1, 0], [2, 0, 4, 5], [1, 0, 0, 0]]
    )
    cases = {
        "char_rnn": (CharRnn("RNN", 7, 5, 2), integers((3, 6), 5300, 7)),
        "char_gru": (CharRnn("GRU", 7, 5, 2), integers((3, 6), 5300, 7)),
        "char_lstm": (CharRnn("LSTM", 7, 5, 2), integers((3, 6), 5300, 7)),
        "text_gru": (TextGru(9, 4, 5, 3), padded(integers((4, 6), 5302, 8), [4, 6, 1, 3])),
        "han": (Han(), documents),
    }
    for index, (case, (model, tokens)) in enumerate(cases.items()):
        model = model.double()
        for number, (name, parameter) in enumerate(model.named_parameters()):
            parameter.data = uniform(tuple(parameter.shape), 5400 + 100 * index + number, -0.8, 0.8)
            if name == "embedding.weight":
                parameter.data[0] = 0.0
        scores = model(tokens)
        labels = integers(tuple(scores.shape[:-1]), 5310 + index, scores.shape[-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        results = {"tokens": tokens, "labels": labels, "scores": scores, "loss": loss}
        tensors = {f"result.{name}": tensor for name, tensor in results.items()}
        for name, parameter in model.named_parameters():
            tensors |= {name: parameter, f"gradient.{name}": parameter.grad}
        save(f"models/tests/golden/{case}.safetensors", tensors)
