"""Opens a Hugging Face folder with transformers and says what the model answers. Run from anywhere:

    pip install torch transformers peft
    python scripts/open_in_transformers.py FOLDER [--adapter FOLDER] < request.json

The request is {"tokens": [[...], ...]}, rows of one length, or {"pixels": "sin", "shape": [N, C, H, W]}, where pixel i
is sin(0.37 i). The answer is {"logits": [...], "shape": [...]}; of a model without a head, its last hidden states. All
is computed in f32. What config.json calls its architecture decides how the folder is opened, and an encoder does not
look at tokens that are its config's pad_token_id. A name or a shape that transformers or PEFT misses, does not know or
expects otherwise is an error, and so is an adapter with which AutoPeftModel.., which opens the base model by what the
adapter says, answers otherwise. crates/candelabrum-transformers compares the answers with its own.
"""

import argparse
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import safetensors.torch
import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict

HEADS = {
    "ForCausalLM": transformers.AutoModelForCausalLM,
    "LMHeadModel": transformers.AutoModelForCausalLM,
    "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
    "ForImageClassification": transformers.AutoModelForImageClassification,
}


AUTO = {
    "CAUSAL_LM": peft.AutoPeftModelForCausalLM,
    "SEQ_CLS": peft.AutoPeftModelForSequenceClassification,
    "FEATURE_EXTRACTION": peft.AutoPeftModelForFeatureExtraction,
    None: peft.AutoPeftModel,
}


def opened(folder, adapter=None):
    """The model of a folder, with the adapter of another one."""
    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    heads = [auto for end, auto in HEADS.items() if architecture.endswith(end)]
    auto = heads[0] if heads else transformers.AutoModel
    options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    model, report = auto.from_pretrained(folder, output_loading_info=True, **options)
    if type(model).__name__ != architecture:
        raise SystemExit(f"{folder}: opened as {type(model).__name__}, not {architecture}")
    if wrong := {what: sorted(map(str, names)) for what, names in report.items() if names}:
        raise SystemExit(f"{folder}: {wrong}")
    return (with_adapter(model, adapter) if adapter else model).eval()


def with_adapter(model, folder):
    """The model with the adapter of a folder, all of whose tensors have a place."""
    stored = safetensors.torch.load_file(os.path.join(folder, "adapter_model.safetensors"))
    model = PeftModel.from_pretrained(model, folder)
    places = get_peft_model_state_dict(model, save_embedding_layers=False)
    if wrong := {str(name) for name in stored.keys() ^ places.keys()}:
        raise SystemExit(f"{folder}: names on one side alone: {sorted(wrong)}")
    return model


def opened_by_adapter(folder):
    """The base model that the adapter names, of the class that it says, with the adapter."""
    task = json.load(open(os.path.join(folder, "adapter_config.json")))["task_type"]
    options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    return AUTO[task].from_pretrained(folder, **options).eval()


def pixels(shape):
    count = torch.Size(shape).numel()
    return torch.sin(0.37 * torch.arange(count, dtype=torch.float64)).float().reshape(shape)


def inputs(model, request):
    """The arguments of the model's forward pass."""
    if "pixels" in request:
        return {"pixel_values": pixels(request["shape"])}
    tokens = torch.tensor(request["tokens"])
    padding = model.config.pad_token_id
    if model.can_generate() or padding is None:
        return {"input_ids": tokens}
    return {"input_ids": tokens, "attention_mask": (tokens != padding).long()}


@torch.no_grad()
def answer(model, request):
    """Logits, or the last hidden states of a model without a head."""
    outputs = model(**inputs(model, request))
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--adapter")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    request = json.load(sys.stdin)
    logits = answer(opened(arguments.folder, arguments.adapter), request)
    if arguments.adapter:
        again = answer(opened_by_adapter(arguments.adapter), request)
        if not torch.equal(logits, again):
            raise SystemExit(f"{arguments.adapter}: another answer if the adapter says what its model is")
    print(json.dumps({"logits": logits.flatten().tolist(), "shape": list(logits.shape)}))


if __name__ == "__main__":
    main()
