"""Writes the golden files of the tests with PyTorch. Run by hand, from anywhere:

    pip install torch torchvision safetensors numpy
    python scripts/golden [NAME ...]      all of them, or those of these functions

Inputs come from an integer hash, implemented identically in crates/candelabrum-testkit/src/random.rs, so that
both sides make the same numbers without a file:

    mix(z)                   the output function of SplitMix64
    hash(seed, i)          = mix(seed * 0x9E3779B97F4A7C15 + i + 1)           modulo 2^64
    unit(seed, i)          = (hash(seed, i) >> 40) / 2^24                     in [0, 1)
    uniform(.., lo, hi)[i] = lo + (hi - lo) * unit(seed, i)                   in float64, then cast
    integers(.., n)[i]     = (hash(seed, i) >> 32) mod n

Files: crates/candelabrum-nn/tests/golden/*.safetensors (operations: computed in float64, `<case>.<name>`, with
`<case>.config` as integers), crates/candelabrum-optim/tests/golden/*.safetensors (recipe at `SHAPES` in
optimizers.py), models/tests/golden/*.safetensors (weights by PyTorch's names, `result.*` and `gradient.*`), and
tests/golden/mnist_cnn_sgd.safetensors (recipe at `mnist_cnn_sgd` in
training.py). Versions and hyper-parameters are in the metadata of each file.
"""

import pathlib
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # networks.py

import arithmetic
import convolutions
import layers
import losses
import models
import norms
import optimizers
import recurrent
import texts
import training
import transformers
import weights

FILES = (
    *(layers.conv2d, layers.linear, layers.max_pool2d, layers.avg_pool2d),
    *(layers.global_avg_pool2d, layers.relu, layers.activations, layers.embedding),
    *(convolutions.conv1d, convolutions.conv_transpose2d, convolutions.separable_conv2d),
    *(convolutions.group_norm, convolutions.local_response_norm),
    *(convolutions.adaptive_avg_pool2d, convolutions.batch_norm1d_layer),
    *(norms.batch_norm2d, norms.batch_norm2d_add, norms.batch_norm2d_conv2d),
    *(norms.batch_norm2d_layer, norms.row_norms, norms.softmax),
    *(norms.cross_entropy, norms.cross_entropy_options, norms.add, recurrent.recurrent),
    *(recurrent.lstm_cell_state, recurrent.rnn, recurrent.stacked_recurrent),
    *(losses.element_losses, losses.bce_with_logits, losses.nll, losses.cosine, losses.ctc),
    losses.attention_pool,
    *(arithmetic.add_broadcast, arithmetic.mul, arithmetic.scale, arithmetic.masked_fill),
    *(transformers.attention, transformers.swiglu, transformers.linear_cross_entropy),
    *(transformers.linear_add, transformers.feed_forward, transformers.embedding_with_positions),
    transformers.transformer_layers,
    *(optimizers.sgd, optimizers.adam, optimizers.adamw, optimizers.rms_prop),
    *(optimizers.ada_grad, optimizers.lamb, optimizers.lars, optimizers.muon),
    *(optimizers.adafactor, optimizers.adamw_8bit, optimizers.schedules),
    *(optimizers.clip, training.mnist_cnn_sgd, weights.weights, texts.texts, models.models),
)

torch.set_num_threads(1)
names = sys.argv[1:] or [write.__name__ for write in FILES]
unknown = set(names) - {write.__name__ for write in FILES}
if unknown:
    sys.exit(f"no such file: {', '.join(sorted(unknown))}")
for write in FILES:
    if write.__name__ in names:
        write()
