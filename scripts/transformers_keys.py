"""Writes the keys of the files of other people's models, with defaults and other values, as the classes of transformers,
sentence-transformers and peft have them. Run by hand, from anywhere:

    pip install torch transformers sentence-transformers peft
    python scripts/transformers_keys.py

crates/candelabrum-transformers/tests/keys.json has, for each class, [default, another value] by the key, and the versions of
the libraries. A test (tests/it/keys.rs) sets each key and expects that it is read, has no effect by a table, or is refused by
name. Keys that only older versions write are listed here.
"""

import dataclasses
import inspect
import json
import pathlib
import re

import peft
import sentence_transformers
import transformers
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import tokenization_utils_base, tokenization_utils_tokenizers

OUTPUT = pathlib.Path(__file__).parent.parent / "crates/candelabrum-transformers/tests/keys.json"

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gpt2": transformers.GPT2Config,
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
    "distilbert": transformers.DistilBertConfig,
    "vit": transformers.ViTConfig,
}

# Generic keys of configs that transformers 4 wrote, and those of the first releases.
OLD_CONFIG = {
    "is_decoder": [False, True],
    "add_cross_attention": [False, True],
    "cross_attention_hidden_size": [None, 8],
    "tie_encoder_decoder": [False, True],
    "tie_word_embeddings": [True, False],
    "pruned_heads": [{}, {"0": [1]}],
    "finetuning_task": [None, "mnli"],
    "task_specific_params": [None, {"summary": {}}],
    "torchscript": [False, True],
    "torch_dtype": ["float32", "float16"],
    "use_bfloat16": [False, True],
    "tf_legacy_loss": [False, True],
    "tokenizer_class": [None, "BertTokenizer"],
    "prefix": [None, "a"],
    "pad_token_id": [None, 3],
    "sep_token_id": [None, 3],
    "decoder_start_token_id": [None, 3],
    "num_labels": [3, 4],
    "_num_labels": [2, 3],
    "_name_or_path": ["", "owner/model"],
    "_commit_hash": [None, "aa"],
    "_attn_implementation_autoset": [False, True],
    "output_attentions": [False, True],
    "output_past": [True, False],
    "gradient_checkpointing": [False, True],
    "auto_map": [None, {"AutoModel": "modeling.Model"}],
    "quantization_config": [None, {"quant_method": "gptq"}],
    "partial_rotary_factor": [None, 0.5],
    "n_ctx": [None, 64],
    "unknown_key": [None, 1],
}

# Those of some families.
OLD_ROTARY = {"rope_scaling": [None, {"type": "dynamic", "factor": 2.0}], "rope_theta": [10000.0, 5000.0]}
OLD_BERT = {"position_embedding_type": ["absolute", "relative_key"], "gradient_checkpointing": [False, True]}

TOKENIZERS = ["LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer", "BertTokenizer", "RobertaTokenizer"]

OLD_TOKENIZER = {
    "additional_special_tokens": [None, ["<new>"]],
    "add_bos_token": [None, True],
    "add_eos_token": [None, True],
    "do_basic_tokenize": [True, False],
    "never_split": [None, ["a"]],
    "legacy": [True, False],
    "sp_model_kwargs": [{}, {"a": 1}],
    "spaces_between_special_tokens": [False, True],
    "use_fast": [True, False],
    "auto_map": [None, {"AutoTokenizer": ["tokenization.Tokenizer", None]}],
    "image_token": [None, "<image>"],
    "trim_offsets": [True, False],
    "split_special_tokens": [False, True],
    "tokenizer_class": [None, "PreTrainedTokenizerFast"],
    "processor_class": [None, "Processor"],
    "unknown_key": [None, 1],
}


def other(value, hint=None):
    """A value of the same kind that is not the default."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (list, tuple)):
        return [*value, "x"]
    if isinstance(value, dict):
        return value | {"x": 1}
    kinds = str(hint)
    for kind, example in (("bool", True), ("int", 3), ("float", 0.25), ("str", "x"), ("list", ["x"]), ("dict", {"x": 1})):
        if re.search(rf"\b{kind}\b", kinds, re.IGNORECASE):
            return example
    return 1


def plain(value):
    """A value as JSON has it."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None


def pair(value, hint=None):
    value = plain(value)
    return [value, plain(other(value, hint))]


def config_keys(kind):
    keys = {"model_type": [kind.model_type, kind.model_type + "x"]}
    for field in dataclasses.fields(kind):
        value = field.default
        if value is dataclasses.MISSING:
            value = None if field.default_factory is dataclasses.MISSING else field.default_factory()
        keys[field.name] = pair(value, field.type)
    # Those of a config as it is written, with properties.
    for key, value in kind().to_dict().items():
        keys.setdefault(key, pair(value))
    if "num_labels" in keys or "id2label" in keys:
        keys["id2label"] = [None, {"0": "a", "1": "b"}]
        keys["label2id"] = [None, {"a": 0, "b": 1}]
    keys["problem_type"] = [None, "regression"]
    old = OLD_ROTARY if "rope_parameters" in keys else OLD_BERT if "type_vocab_size" in keys else {}
    return OLD_CONFIG | old | keys


def generation_keys():
    values = transformers.GenerationConfig().__dict__
    defaults = transformers.GenerationConfig._get_default_generation_params()
    special = {"eos_token_id": [None, [3, 4]], "stop_strings": [None, ["a"]], "compile_config": [None, {"a": 1}]}
    keys = {key: pair(defaults.get(key, value)) for key, value in values.items()}
    return keys | special | {"unknown_key": [None, 1]}


def tokenizer_keys():
    keys = dict(OLD_TOKENIZER)
    for name in tokenization_utils_base.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES:
        keys[name] = [None, "<new>"]
    for name in TOKENIZERS:
        for parameter in inspect.signature(getattr(transformers, name)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in keys:
                default = None if parameter.default is parameter.empty else parameter.default
                keys[parameter.name] = pair(default, parameter.annotation)
    # What the base classes take out of their arguments.
    for kind in (tokenization_utils_base.PreTrainedTokenizerBase, tokenization_utils_tokenizers.TokenizersBackend):
        for name in re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', inspect.getsource(kind.__init__)):
            keys.setdefault(name, [None, "x"])
    # The vocabulary is in tokenizer.json, and objects of Python are in no file.
    for name in ("vocab", "merges", "tokenizer_object", "_json_truncation", "_json_padding", "gguf_file", "post_processor",
                 "tokenizer_padding", "tokenizer_truncation", "_spm_precompiled_charsmap", "model_specific_special_tokens",
                 "tokenizer"):
        keys.pop(name, None)
    return keys | {
        "added_tokens_decoder": [None, {"11": {"content": "<new>", "special": True}}],
        "extra_special_tokens": [None, ["<new>"]],
        "chat_template": [None, "{{ messages }}"],
        "padding_side": ["right", "left"],
        "truncation_side": ["right", "left"],
        "model_max_length": [None, 8],
        "model_input_names": [None, ["input_ids"]],
    }


def pooling_keys():
    keys = {key: [None, True] for key in inspect.signature(Pooling.__init__).parameters if key not in ("self",)}
    old = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    keys |= {f"pooling_mode_{name}": [False, True] for name in old}
    keys |= {"word_embedding_dimension": [16, 8], "embedding_dimension": [16, 8], "include_prompt": [True, False]}
    return keys | {"pooling_mode": [None, "cls"], "unknown_key": [None, 1]}


def image_keys():
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    keys = {key: pair(value) for key, value in processor.to_dict().items()}
    valid = getattr(processor, "valid_kwargs", None)
    for key, hint in getattr(valid, "__annotations__", {}).items():
        keys.setdefault(key, pair(None, hint))
    old = {"size": [16, 24], "resample": [2, 3], "do_center_crop": [False, True], "feature_extractor_type": [None, "x"]}
    return keys | old | {"unknown_key": [None, 1]}


def lora_keys():
    keys = {}
    for field in dataclasses.fields(peft.LoraConfig):
        value = field.default
        if value is dataclasses.MISSING:
            value = field.default_factory()
        keys[field.name] = pair(list(value) if isinstance(value, set) else value, field.type)
    return keys | {"unknown_key": [None, 1]}


def main():
    versions = {module.__name__: module.__version__ for module in (transformers, sentence_transformers, peft)}
    files = {f"config.json of {family}": config_keys(kind) for family, kind in CONFIGS.items()} | {
        "generation_config.json": generation_keys(),
        "tokenizer_config.json": tokenizer_keys(),
        "1_Pooling/config.json": pooling_keys(),
        "preprocessor_config.json": image_keys(),
        "adapter_config.json": lora_keys(),
    }
    dense = json.JSONEncoder(separators=(",", ":")).encode
    parts = [f'"versions": {dense(versions)}']
    for file, keys in files.items():
        lines = ",\n".join(f'"{key}": {dense(value)}' for key, value in sorted(keys.items()))
        parts.append(f'"{file}": {{\n{lines}\n}}')
    OUTPUT.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes, {sum(map(len, files.values()))} keys of {len(files)} files")


if __name__ == "__main__":
    main()
