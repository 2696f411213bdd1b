"""Writes what transformers and sentence-transformers make of files that say something beside the weights: scaled rotary
positions, poolings, pairs of texts, settings of a generation, and tokens that are added to a tokenizer. Run by hand, from
anywhere:

    pip install torch transformers sentence-transformers gguf
    python scripts/file_goldens.py

crates/candelabrum-transformers/tests/files.json has the results, of the tiny models of tests/tiny:

    versions       of the libraries
    gguf           logits behind the last token of `llama-gguf`, if its rotary positions are scaled so
    pooling        embeddings by `bert-base` of two texts, the second one padded, by the settings of 1_Pooling/config.json
    pairs          logits of `bert` with the types of the tokens of pairs
    generation     tokens that `llama` writes by a generation_config.json
    tokenizers     the files of small tokenizers, and the tokens of a text by AutoTokenizer

The tests read the file, and need no Python.
"""

import json
import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer.modules import Pooling

TESTS = pathlib.Path(__file__).parent.parent / "crates/candelabrum-transformers/tests"
TINY = TESTS / "tiny"
EAGER = {"attn_implementation": "eager"}


def expected(name):
    return json.loads((TINY / name / "expected.json").read_text())


def rounded(values):
    return [float(f"{value:.7g}") for value in values.flatten().tolist()]


@torch.no_grad()
def gguf():
    kind = transformers.LlamaForCausalLM
    model = kind.from_pretrained(TINY / "llama-gguf", gguf_file="model.gguf", **EAGER)
    tokens = torch.tensor(expected("llama-gguf")["tokens"])
    found = {}
    for name, scaling in {
        "none": {"rope_type": "default"},
        "linear": {"rope_type": "linear", "factor": 4.0},
        "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "yarn with factors": {
            **dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=16.0, beta_slow=2.0),
            # llama.cpp's attn_factor 1.5
            "attention_factor": 1.5 * (0.1 * torch.tensor(8.0, dtype=torch.float64).log().item() + 1.0),
        },
    }.items():
        config = model.config.to_dict() | {"rope_parameters": scaling | {"rope_theta": 10000.0}}
        scaled = kind(transformers.LlamaConfig(**config, **EAGER)).eval()
        scaled.load_state_dict(model.state_dict())
        found[name] = rounded(scaled(input_ids=tokens).logits[:, -1])
    return found


@torch.no_grad()
def pooling():
    model = transformers.BertModel.from_pretrained(TINY / "bert-base", **EAGER).eval()
    tokens = torch.tensor(expected("bert-base")["tokens"])
    mask = (tokens != model.config.pad_token_id).long()
    states = model(input_ids=tokens, attention_mask=mask).last_hidden_state
    found = []
    for modes in ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["cls", "mean"]]:
        features = {"token_embeddings": states, "attention_mask": mask}
        embeddings = Pooling(states.shape[-1], modes)(features)["sentence_embedding"]
        found.append({"pooling_mode": modes, "embeddings": rounded(embeddings)})
    return found


@torch.no_grad()
def pairs():
    model = transformers.BertForSequenceClassification.from_pretrained(TINY / "bert", **EAGER).eval()
    tokens = torch.tensor(expected("bert")["tokens"])
    mask = (tokens != model.config.pad_token_id).long()
    types = (torch.arange(tokens.shape[1]) >= 4).long().expand_as(tokens) * mask
    logits = model(input_ids=tokens, attention_mask=mask, token_type_ids=types).logits
    return {"types": types.tolist(), "logits": rounded(logits)}


def generation():
    model = transformers.LlamaForCausalLM.from_pretrained(TINY / "llama", **EAGER).eval()
    prompt = expected("llama")["tokens"][0][:5]
    plain = written(model, prompt, {"max_new_tokens": 12, "eos_token_id": None})
    found = []
    for settings in [
        {"max_new_tokens": 12, "eos_token_id": 63},
        # Ends at the fourth token.
        {"max_new_tokens": 12, "eos_token_id": [63, plain[3]]},
        {"max_new_tokens": 12, "repetition_penalty": 1.3, "eos_token_id": 63},
        {"max_length": 9, "eos_token_id": 63},
        # Sampling that can draw one token.
        {"max_new_tokens": 12, "do_sample": True, "top_k": 1, "temperature": 0.5, "eos_token_id": 63},
    ]:
        found.append({"settings": settings, "tokens": written(model, prompt, settings)})
    return {"prompt": prompt, "cases": found}


def written(model, prompt, settings):
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, **settings)
    tokens = model.generate(torch.tensor([prompt]))[0, len(prompt) :].tolist()
    ends = settings["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    # An end is not part of the text here.
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


WORDS = ["<unk>", "<s>", "</s>", "hello", "world"]


def special(number, **options):
    form = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return {"id": number, "content": WORDS[number]} | form | options


def entry(text, is_special, **options):
    form = dict(lstrip=False, normalized=not is_special, rstrip=False, single_word=False, special=is_special)
    return {"content": text} | form | options


def base(**options):
    return {
        **dict(version="1.0", truncation=None, padding=None, normalizer=None, post_processor=None, decoder=None),
        "added_tokens": [special(number) for number in range(3)],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<unk>"},
    } | options


def tokenizers():
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = named | {"tokenizer_class": "PreTrainedTokenizerFast"}
    decoder = {"5": entry("<|turn|>", True), "6": entry("<think>", False)}
    cases = {
        "added_tokens_decoder": {"tokenizer_config.json": config | {"added_tokens_decoder": decoder}},
        "additional_special_tokens": {
            "tokenizer_config.json": config | {"additional_special_tokens": ["<|turn|>", "<think>"]}
        },
        "extra_special_tokens": {"tokenizer_config.json": config | {"extra_special_tokens": ["<|turn|>", "<think>"]}},
        "extra_special_tokens by name": {
            "tokenizer_config.json": config | {"extra_special_tokens": {"turn_token": "<|turn|>"}}
        },
        "a token with a name of the model's own": {"tokenizer_config.json": config | {"image_token": "<|turn|>"}},
        "another form of a token": {
            "tokenizer_config.json": config
            | {"added_tokens_decoder": {"2": entry("</s>", True, rstrip=True), "5": entry("<|turn|>", True, lstrip=True)}}
        },
        "special_tokens_map.json": {
            "tokenizer_config.json": config,
            "special_tokens_map.json": named | {"pad_token": "<pad>", "additional_special_tokens": ["<|turn|>"]},
        },
        "special_tokens_map.json is old": {
            "tokenizer_config.json": config | {"added_tokens_decoder": {"5": entry("<|turn|>", True)}},
            "special_tokens_map.json": named | {"eos_token": "world"},
        },
        "added_tokens.json": {
            "tokenizer_config.json": config,
            "added_tokens.json": {"<think>": 6, "<|turn|>": 5},
        },
        "an object as a token": {
            "tokenizer_config.json": config | {"pad_token": {"__type": "AddedToken"} | entry("<pad>", True)},
        },
    }
    text = "hello <|turn|> <think> world </s> <pad> hello"
    found = []
    for name, files in cases.items():
        files = {"tokenizer.json": base()} | files
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (pathlib.Path(folder) / file).write_text(json.dumps(content))
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        found.append(
            {
                **dict(name=name, files=files, text=text),
                "tokens": tokenizer(text)["input_ids"],
                "decoded": tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True),
                "len": max(tokenizer.get_vocab().values()) + 1,
                "end": tokenizer.eos_token_id,
                "padding": tokenizer.pad_token_id,
            }
        )
    return found


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    modules = (torch, transformers, sentence_transformers)
    parts = {"versions": {module.__name__: module.__version__ for module in modules}}
    parts |= {part.__name__: part() for part in (gguf, pooling, pairs, generation, tokenizers)}
    dense = json.JSONEncoder(separators=(",", ":")).encode
    output = TESTS / "files.json"
    output.write_text("{\n" + ",\n".join(f'"{key}": {dense(value)}' for key, value in parts.items()) + "\n}\n")
    print(f"{output.name}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
