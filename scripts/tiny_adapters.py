"""Writes what the tests of crates/candelabrum-transformers compare adapters and losses with. Run by hand, from anywhere, after
tiny_models.py:

    pip install torch transformers peft gguf
    python scripts/tiny_adapters.py

A folder of crates/candelabrum-transformers/tests/tiny/adapters/ is an adapter that PEFT wrote, with random numbers, and
expected.json beside it: the tiny model `base`, its input (`tokens`, or images as of tiny_models.py), and the `logits`, of a
language model those behind the last token of the first row. An adapter whose `refused` is set has another meaning in PEFT
than it can have here; its logits are those of PEFT.

tests/tiny/problems.json has losses of classifiers, by the `problem_type` and the `labels` of each entry: those of 20 steps of
AdamW as in tiny_models.py, of the tiny model `bert` with so many `classes`. Of one class, the head is the first row of the
model's.
"""

import json
import os

import safetensors.torch
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from open_in_transformers import answer, inputs, opened
from tiny_models import FOLDER, IMAGES, emptied, generator, in_order, losses, randomize, rounded, tokens, write

Q_AND_V = {
    "llama": ["q_proj", "v_proj"],
    "gpt2": ["c_attn"],
    "bert": ["query", "value"],
    "roberta": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"],
    "vit": ["q_proj", "v_proj"],
}

ADAPTERS = {
    "bert-classes": ("bert", dict(task_type="SEQ_CLS")),
    "roberta-classes": ("roberta", dict(task_type="SEQ_CLS", target_modules="all-linear")),
    "distilbert-classes": ("distilbert", dict(task_type="SEQ_CLS")),
    "vit-classes": ("vit", dict(modules_to_save=["classifier"])),
    "vit-all-linear": ("vit", dict(target_modules="all-linear", use_rslora=True)),
    "gpt2": ("gpt2", dict(task_type="CAUSAL_LM", fan_in_fan_out=True)),
    "llama-head": ("llama", dict(target_modules=["lm_head", "o_proj"], init_lora_weights="gaussian")),
    "llama-norms": ("llama", dict(modules_to_save=["norm", "lm_head"])),
    "llama-tied": ("llama-tied", dict(modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "llama-untied": ("llama-tied", dict(modules_to_save=["embed_tokens"])),
}
REFUSED = {"llama-untied"}

PROBLEMS = [
    dict(classes=1, problem_type=None, labels=[0.5, -1.0]),
    dict(classes=1, problem_type="regression", labels=[[2.0], [1.0]]),
    dict(classes=1, problem_type="multi_label_classification", labels=[[1.0], [0.0]]),
    dict(classes=3, problem_type="regression", labels=[[0.5, -1.0, 2.0], [0.0, 1.0, 3.0]]),
    dict(classes=3, problem_type=None, labels=[[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
    dict(classes=3, problem_type="multi_label_classification", labels=[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]),
    dict(classes=3, problem_type=None, labels=[2, -100]),
    dict(classes=3, problem_type="single_label_classification", labels=[1, 0]),
]


def adapter(name):
    base, options = ADAPTERS[name]
    options = dict(r=2, lora_alpha=6, target_modules=Q_AND_V[base.split("-")[0]]) | options
    model = get_peft_model(opened(FOLDER / base), LoraConfig(**options)).eval()
    randomize([entry for entry in model.named_parameters() if entry[1].requires_grad], generator(name))
    model.peft_config["default"].base_model_name_or_path = base
    folder = emptied(f"adapters/{name}")
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    in_order(folder / "adapter_config.json")
    request = IMAGES if base == "vit" else {"tokens": tokens(base, model.config.pad_token_id)}
    logits = answer(model, request)
    again = answer(PeftModel.from_pretrained(opened(FOLDER / base), folder).eval(), request)
    assert torch.equal(logits, again), name
    # The table of tokens gives the last token of the first row its numbers, and the head all of them.
    logits = logits[0, -1] if model.can_generate() else logits
    expected = {"base": base} | request | {"logits": rounded(logits), "refused": name in REFUSED}
    write(folder, expected)


def problem(entry):
    """An entry of problems.json with its losses."""
    classes, labels = entry["classes"], entry["labels"]
    config = transformers.AutoConfig.from_pretrained(
        FOLDER / "bert", num_labels=classes, problem_type=entry["problem_type"]
    )
    tensors = safetensors.torch.load_file(FOLDER / "bert/model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][:classes].clone()
    model = transformers.BertForSequenceClassification(config).eval()
    model.load_state_dict(tensors)
    request = {"tokens": tokens("bert", config.pad_token_id)}
    return entry | request | losses(model, request, labels)


def main():
    os.chdir(FOLDER)  # PEFT looks for the base model in the folder that its config names.
    for name in ADAPTERS:
        adapter(name)
    lines = ",\n".join(json.dumps(problem(entry)) for entry in PROBLEMS)
    (FOLDER / "problems.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
