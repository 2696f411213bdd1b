"""What all golden files are made with: the integer hash, inputs with gradients, and their storage."""

import json
import pathlib

import numpy as np
import safetensors
import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def hashes(n, seed):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(shape, seed, lo=-1.0, hi=1.0, dtype=torch.float64):
    unit = (hashes(int(np.prod(shape)), seed) >> np.uint64(40)).astype(np.float64) / 2.0**24
    return torch.from_numpy((lo + (hi - lo) * unit).reshape(shape)).to(dtype)


def integers(shape, seed, n):
    values = (hashes(int(np.prod(shape)), seed) >> np.uint64(32)) % np.uint64(n)
    return torch.from_numpy(values.astype(np.int64).reshape(shape))


def save(path, tensors, **metadata):
    path = ROOT / path
    path.parent.mkdir(parents=True, exist_ok=True)
    # As old as the code that reads it, whatever the allocator did: contiguous and without views.
    tensors = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    metadata = {name: v if isinstance(v, str) else json.dumps(v) for name, v in metadata.items()}
    versions = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "script": "scripts/golden",
    }
    safetensors.torch.save_file(tensors, path, metadata=versions | metadata)
    print(f"{path.relative_to(ROOT)}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def backward(tensors, case, inputs, ys, seed):
    """Stores inputs, result, the gradient fed in, and the gradients of the inputs."""
    dys = uniform(tuple(ys.shape), seed) if ys.dim() else torch.tensor(1.0, dtype=ys.dtype)
    gradients = torch.autograd.grad(ys, list(inputs.values()), dys)
    tensors |= {f"{case}.{name}": t for name, t in inputs.items()}
    tensors |= {f"{case}.d{name}": g for name, g in zip(inputs, gradients)}
    tensors |= {f"{case}.ys": ys, f"{case}.dys": dys}


def leaf(t):
    return t.clone().requires_grad_()
