"""Writes the tiny models of the tests of crates/candelabrum-transformers, as transformers and PEFT write them. Run by
hand, from anywhere:

    pip install torch transformers peft gguf
    python scripts/tiny_models.py [NAME ...]      all of them, or those of these names (a copy needs its original)

A folder of crates/candelabrum-transformers/tests/tiny/ is a model with random weights (config.json and
model.safetensors), an adapter of the model `llama`, or a GGUF file, with what is expected of it in expected.json:

    tokens, labels     the input; of images, `pixels_shape`, with pixel i = sin(0.37 i), in f64 and then rounded to f32
    logits, shape      the answer to it
    losses             of 20 steps of AdamW on it, each before its update. All parameters are trained at a rate of 5e-3,
                       a decay of 0.01 and PyTorch's other defaults; of an adapter, its own without a decay. The labels
                       of a causal model are its tokens. Nothing is dropped out.
    states             of an encoder: the last hidden states, also of padding, with `states_shape`
    pooled, mean       of an encoder without a head: what its pooler says, and the mean of the states of tokens that are
                       no padding, divided by its length
    generated          the ten likeliest tokens, one after the other, after the first five of the first row
    types              of a GGUF file: how its tensors are stored. Its answer is that of the stored values.

Everything is computed in f32. An encoder does not look at padding, which is at the end of the second row. The script
opens every folder again and checks the answer.
"""

import json
import pathlib
import shutil
import sys
import zlib

import numpy as np
import torch
from torch.nn import functional as F

from open_in_transformers import answer, inputs, opened  # before transformers

import gguf
import safetensors.torch
import transformers
from peft import LoraConfig, get_peft_model

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/candelabrum-transformers/tests/tiny"
VOCABULARY = 64
IMAGES = {"pixels": "sin", "shape": [2, 3, 16, 16]}
PADDED = 4  # tokens of the second row
STEPS = 20
LABELS = [2, 0]
GENERATE = ("llama", "gpt2", "qwen3")
SEED = 79  # one with which the three do not generate the same token again and again

LLAMA = dict(
    **dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2),
    **dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64),
)
GPT2 = dict(
    **dict(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=4),
    **dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
)
BERT = dict(
    **dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2),
    **dict(num_attention_heads=4, max_position_embeddings=64, num_labels=3),
    **dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
)
ROBERTA = BERT | dict(max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5)
DISTILBERT = dict(
    **dict(vocab_size=VOCABULARY, dim=16, hidden_dim=32, n_layers=2, n_heads=4, num_labels=3),
    **dict(max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0),
)
VIT = dict(
    **dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4),
    **dict(image_size=16, patch_size=4, num_channels=3, num_labels=3),
    **dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
)

# Bases with which some of the four frequencies of a head are kept, some are divided, and one is in between.
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=2.0)
LLAMA3 = dict(
    **dict(rope_type="llama3", rope_theta=100.0, factor=8.0, original_max_position_embeddings=32),
    **dict(low_freq_factor=1.0, high_freq_factor=4.0),
)
YARN = dict(rope_type="yarn", rope_theta=10.0, factor=4.0, original_max_position_embeddings=16)

MODELS = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-tied": ("LlamaForCausalLM", LLAMA | dict(tie_word_embeddings=True)),
    "llama-bias": (
        "LlamaForCausalLM",
        LLAMA | dict(attention_bias=True, mlp_bias=True, rope_parameters=LINEAR),
    ),
    "llama3-rope": ("LlamaForCausalLM", LLAMA | dict(head_dim=8, rope_parameters=LLAMA3)),
    "llama-yarn": ("LlamaForCausalLM", LLAMA | dict(head_dim=8, rope_parameters=YARN)),
    "mistral": ("MistralForCausalLM", LLAMA | dict(head_dim=8, sliding_window=5)),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | dict(head_dim=8, tie_word_embeddings=True)),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "bert": ("BertForSequenceClassification", BERT),
    "bert-base": ("BertModel", BERT),
    "distilbert": ("DistilBertForSequenceClassification", DISTILBERT),
    "roberta": ("RobertaForSequenceClassification", ROBERTA),
    "vit": ("ViTForImageClassification", VIT),
}


def generator(name):
    return torch.Generator().manual_seed(zlib.crc32(f"{SEED} {name}".encode()))


@torch.no_grad()
def randomize(parameters, random):
    """Weights of norms around one, and everything else around zero."""
    for name, values in parameters:
        if values.dim() == 1 and name.endswith("weight"):
            values.uniform_(0.8, 1.2, generator=random)
        else:
            values.normal_(0.0, 0.2, generator=random)


def made(name):
    """A model of random weights."""
    kind, options = MODELS[name]
    kind = getattr(transformers, kind)
    model = kind(kind.config_class(attn_implementation="eager", **options)).eval()
    randomize(model.named_parameters(), generator(name))
    return model


def tokens(name, padding=None):
    """Two rows of tokens, of which the last of the second are padding."""
    rows = torch.randint(3, VOCABULARY, (2, 12), generator=generator(f"tokens of {name}"))
    if padding is not None:
        rows[1, -PADDED:] = padding
    return rows.tolist()


def flat(name, values, shape="shape"):
    """An entry of expected.json with its shape."""
    return {name: rounded(values), shape: list(values.shape)}


def rounded(values):
    """Numbers of seven decimals, which keeps the files small."""
    return [round(value, 7) for value in values.detach().flatten().tolist()]


def losses(model, request, labels, decay=0.01):
    """Losses of training, after which the model is another one."""
    trained = [values for values in model.parameters() if values.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=decay)

    def step():
        loss = model(**inputs(model, request), labels=torch.tensor(labels)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"losses": rounded(torch.stack([step() for _ in range(STEPS)]))}


def generated(model, request):
    row = request["tokens"][0][:5]
    for _ in range(10):
        row = row + [answer(model, {"tokens": [row]})[0, -1].argmax().item()]
    return {"generated": row[5:]}


@torch.no_grad()
def states(model, request):
    return flat("states", model.base_model(**inputs(model, request))[0], "states_shape")


@torch.no_grad()
def embeddings(model, request):
    """The two embeddings of a text that encoders without a head are used for."""
    arguments = inputs(model, request)
    outputs, mask = model(**arguments), arguments["attention_mask"].unsqueeze(-1)
    mean = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)
    pooled = flat("pooled", outputs.pooler_output, "pooled_shape")
    return pooled | flat("mean", F.normalize(mean), "mean_shape")


def expected_of(name, model):
    """What is expected of a model that is no adapter. It is trained in the end."""
    if "image_size" in model.config.to_dict():
        start, request, labels = {"pixels_shape": IMAGES["shape"]}, IMAGES, LABELS
        return start | {"labels": labels} | answer_and_losses(model, request, labels)
    padding = None if model.can_generate() else model.config.pad_token_id
    request = {"tokens": tokens(name, padding)}
    if model.can_generate():
        more = generated(model, request) if name in GENERATE else {}
        return request | more | answer_and_losses(model, request, request["tokens"])
    expected = request | states(model, request)
    if type(model).__name__ == "BertModel":
        return expected | embeddings(model, request)
    return expected | {"labels": LABELS} | answer_and_losses(model, request, LABELS)


def answer_and_losses(model, request, labels, **options):
    logits = flat("logits", answer(model, request))
    return logits | losses(model, request, labels, **options)


def emptied(name):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def save(model, name, **options):
    folder = emptied(name)
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def write(folder, expected):
    """Writes expected.json, an entry a line."""
    dense = json.JSONEncoder(separators=(",", ":")).encode
    entries = (f'"{key}": {dense(value)}' for key, value in expected.items())
    (folder / "expected.json").write_text("{\n" + ",\n".join(entries) + "\n}\n")


def model_folder(name):
    model = made(name)
    folder = save(model, name)
    write(folder, expected_of(name, model))
    check(name, opened(folder))


def sharded(name):
    """The weights of `llama` in bf16 and in several files. They are expected to be widened to f32."""
    options = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    model = transformers.LlamaForCausalLM.from_pretrained(FOLDER / "llama", **options)
    folder = save(model, name, max_shard_size="5KB")
    write(folder, expected_of("llama", opened(folder)))
    check(name, opened(folder))


def old_names(name):
    """The model `bert` with the names of norms that BERT's own release has."""
    folder = emptied(name)
    for file in ("config.json", "expected.json"):
        shutil.copy(FOLDER / "bert" / file, folder)
    tensors = safetensors.torch.load_file(FOLDER / "bert/model.safetensors")
    renamed = {old_name(name): values for name, values in tensors.items()}
    safetensors.torch.save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    check(name, opened(folder))


def old_name(name):
    new = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return new.replace("LayerNorm.bias", "LayerNorm.beta")


def adapter(name):
    """An adapter of `llama` that changes its answer."""
    options = dict(
        **dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
        **dict(task_type="CAUSAL_LM", use_dora=name == "llama-dora"),
    )
    model = get_peft_model(opened(FOLDER / "llama"), LoraConfig(**options)).eval()
    own = [(key, values) for key, values in model.named_parameters() if values.requires_grad]
    random = generator(name)
    randomize([entry for entry in own if "magnitude" not in entry[0]], random)
    with torch.no_grad():
        for _, values in (entry for entry in own if "magnitude" in entry[0]):
            values *= torch.empty_like(values).uniform_(0.8, 1.2, generator=random)
    model.peft_config["default"].base_model_name_or_path = "llama"
    folder = save(model, name, save_embedding_layers=False)
    (folder / "README.md").unlink()
    in_order(folder / "adapter_config.json")
    request = {"tokens": tokens("llama")}
    expected = request | answer_and_losses(model, request, request["tokens"], decay=0.0)
    write(folder, expected)
    check(name, opened(FOLDER / "llama", folder))


def in_order(file):
    """PEFT writes a set of names, in another order every time, and no end of line."""
    config = json.loads(file.read_text())
    config["target_modules"].sort()
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def llama_gguf(name):
    """A model of llama.cpp. transformers reads the file too, and has to answer the same."""
    kind = transformers.LlamaForCausalLM
    options = LLAMA | dict(hidden_size=32, intermediate_size=64)
    model = kind(kind.config_class(attn_implementation="eager", **options)).eval()
    randomize(model.named_parameters(), generator(name))
    folder = emptied(name)
    types = write_gguf(folder / "model.gguf", model)
    request = {"tokens": tokens(name)}
    write(folder, request | flat("logits", answer(model, request)) | {"types": types})
    check(name, kind.from_pretrained(folder, gguf_file="model.gguf", attn_implementation="eager"))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.layers": "blk",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}


def gguf_name(name):
    for own, theirs in GGUF_NAMES.items():
        name = name.replace(own, theirs)
    return name


def gguf_type(name, values):
    types = gguf.GGMLQuantizationType
    if values.ndim == 1:
        return types.F32
    return types.Q4_1 if "ffn_" in name else types.Q8_0


def gguf_order(name, values, config):
    """llama.cpp rotates neighbours, not the two halves of a head, so it has the rows in another order."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    heads = [count for layer, count in heads.items() if f"{layer}." in name]
    if not heads:
        return values
    rows, columns = values.shape
    halves = values.reshape(heads[0], 2, rows // heads[0] // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


@torch.no_grad()
def write_gguf(path, model):
    """Writes the model, which gets the values that the file can store. Returns how they are stored."""
    writer = gguf.GGUFWriter(path, "llama")
    write_gguf_config(writer, model.config)
    write_gguf_tokens(writer)
    types = {}
    for name, parameter in model.named_parameters():
        name, values = gguf_name(name), parameter.numpy()
        kind = gguf_type(name, values)
        stored = gguf.quants.quantize(gguf_order(name, values, model.config), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        # Every row is stored for itself, so their order makes no difference to the values.
        values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        parameter.copy_(torch.from_numpy(values.astype(np.float32)))
        types[name] = kind.name
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def write_gguf_config(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def write_gguf_tokens(writer):
    """A vocabulary of two controls, characters (a space is written as "Ġ"), and what is merged of them."""
    characters = ["Ġ", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'"]
    merges = "h e,t he,Ġ the,i n,in g,a n,an d,Ġ and,e r,o n,o r,r e,e n,o u,e s,l l,a t,Ġ a,i s,s t"
    merges = merges.split(",")
    merged = [merge.replace(" ", "") for merge in merges]
    controls, others = ["<|begin|>", "<|end|>"], [*characters, *merged]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(controls + others)
    types = [gguf.TokenType.CONTROL] * len(controls) + [gguf.TokenType.NORMAL] * len(others)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    assert len(controls + others) == VOCABULARY


def check(name, model):
    """Says how large a folder is whose model answers what is expected."""
    expected = json.loads((FOLDER / name / "expected.json").read_text())
    request = expected if "tokens" in expected else IMAGES
    logits = torch.tensor(expected.get("logits", expected.get("states")))
    error = (answer(model, request).flatten() - logits).abs().max().item()
    assert error <= 1e-6, f"{name}: another answer, by {error}"
    size = sum(file.stat().st_size for file in (FOLDER / name).iterdir())
    print(f"{name}: {size} bytes, its answer again, to {error:.0e}")


FOLDERS = {name: model_folder for name in MODELS} | {
    "llama-sharded": sharded,
    "bert-old-names": old_names,
    "llama-lora": adapter,
    "llama-dora": adapter,
    "llama-gguf": llama_gguf,
}


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or FOLDERS:
        FOLDERS[name](name)


if __name__ == "__main__":
    main()
