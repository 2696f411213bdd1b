"""Writes what transformers and PEFT compute of two real models, which crates/candelabrum-transformers compares with its
own. Run by hand, from anywhere:

    cargo xtask setup --models
    pip install torch transformers peft gguf
    python scripts/real_models.py FOLDER          the folder with minilm and smollm2

tests/real/expected.json of the crate has an entry for each model. Of MiniLM, a sentence encoder:

    texts, tokens      texts, and the tokens of each
    embeddings         the mean of its states, divided by the mean's length
    first, last        the last hidden states of its first and of its last token
    training           rows of tokens and their labels, and the losses of a classifier, each before its update

Of SmolLM2, a language model whose GGUF file transformers widens to f32:

    texts, tokens      texts, of which the last is a conversation in the model's template
    logits, likeliest  of the token behind each text: the logits of those in `tokens_of_logits`, and the five likeliest
    passage            a longer text, its tokens, and the mean loss of all of them but the first
    greedy             an asked question, and the likeliest tokens, one after the other, behind it
    training           rows of tokens, and the losses of an adapter

Everything but the losses of SmolLM2 is computed in f32, and text by text, so only the training of MiniLM has padding.
Nothing is dropped out. The tests set the weights that training starts with by the same formula as `waves`.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from torch.nn import functional as F

import open_in_transformers  # before transformers: no download

import transformers
from peft import LoraConfig, get_peft_model
from tokenizers import pre_tokenizers

OUTPUT = "crates/candelabrum-transformers/tests/real/expected.json"
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / OUTPUT
OPTIONS = {"dtype": torch.float32, "attn_implementation": "eager"}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS = 20

PASSAGE = """\
The lighthouse stood on the last rock before the open sea, and for eighty years its keepers wrote down the weather \
every six hours. Most entries are short: wind from the west, rain, a sail at noon. But on the evening of the third of \
March the keeper, a patient woman who had never missed a single line, began to describe the light itself. She wrote \
that the lamp was like a slow thought which returns to the same place, and each time finds the water changed. After \
that night her notes became longer. She counted the birds, drew the shapes of clouds in the margin, and asked questions \
that no office on the mainland could answer: why do waves arrive in groups of seven, how does fog know where the \
harbour is, and what do ships dream of when they are tied up in winter? When the station was closed, the books were \
sent to the archive in the capital, where a student found them under a pile of tide tables. "Nobody had opened them," \
the student said later, "and yet they read as if someone had been listening all the time."\
"""

SENTENCES = [
    "A film without a story, and without a single good scene.",
    "Żółć & naïve café, Straße 24½: 東京タワー \N{SLIGHTLY SMILING FACE} — ﬁne “quotes”, e\u0301 and İ.",
    PASSAGE,
    "",
    "HELLO   World!!! x_3=3.14159; me@example.org\tTab\nunbelievably antidisestablishmentarianism",
]

REVIEWS = [
    ("A warm, funny and honest film.", 1),
    ("Two hours that I will never get back.", 0),
    ("The actors do what they can, but the script gives them nothing to say at all.", 0),
    ("Beautiful pictures, and a story that stays in the mind for days.", 1),
    ("Dull.", 0),
    ("It is rare that a sequel is better than the original; this one is, by far.", 1),
    ("I laughed once, at the end, because it was over.", 0),
    ("See it on the largest screen that you can find!", 1),
]

CODE = '''\
def fibonacci(n: int) -> list[int]:
    """The first n numbers."""
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]


if __name__ == "__main__":
\tprint(fibonacci(10))  # [0, 1, 1, 2, 3,
'''

NUMBERS = "Table 7:  3.14159 + 2.71828 = 5.85987; 10 - 12 = -2; 2024-12-31 23:59:59,  1,000,000 × ½ = 500,"

CONVERSATION = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue? ¿Y por qué?"},
    {"role": "assistant", "content": "Because air scatters blue light more than red light."},
    {"role": "user", "content": "And in the evening?"},
]

QUESTION = [{"role": "user", "content": "What is the capital of France, and on which river does it lie?"}]


def waves(shape, scale):
    """Weights to start with: entry i is scale * sin(0.37 i), in f64 and then rounded to f32."""
    count = torch.Size(shape).numel()
    return torch.from_numpy((scale * np.sin(0.37 * np.arange(count))).astype(np.float32)).reshape(shape)


def rounded(values, decimals=7):
    return np.round(values.detach().numpy().astype(np.float64), decimals).tolist()


def losses(trained, loss_of, **options):
    optimizer = torch.optim.AdamW(trained, **options)
    found = []
    for _ in range(STEPS):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return rounded(torch.stack(found))


def loss_of_next(model, rows):
    """The mean loss of all tokens but the first of each row. A sum of exponentials over 49152 logits in f32, as in the
    model's own loss, would be off by 2e-5."""
    logits = model(rows).logits[:, :-1].double()
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def minilm(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, **OPTIONS).eval()
    tokens = [tokenizer(text)["input_ids"] for text in SENTENCES]
    with torch.no_grad():
        states = [model(torch.tensor([row])).last_hidden_state[0] for row in tokens]
    return {
        "texts": SENTENCES,
        "tokens": tokens,
        "embeddings": [rounded(F.normalize(rows.mean(0), dim=0)) for rows in states],
        "first": [rounded(rows[0], 6) for rows in states],
        "last": [rounded(rows[-1], 6) for rows in states],
        "training": minilm_training(folder, tokenizer),
    }


def minilm_training(folder, tokenizer):
    """All parameters of a classifier are trained, without dropout."""
    kind = transformers.BertForSequenceClassification
    model = kind.from_pretrained(folder, num_labels=2, **OPTIONS).eval()
    with torch.no_grad():
        model.classifier.weight.copy_(waves(model.classifier.weight.shape, 0.05))
        model.classifier.bias.zero_()
    batch = tokenizer([text for text, _ in REVIEWS], padding=True, return_tensors="pt")
    labels = torch.tensor([label for _, label in REVIEWS])
    rows = {key: batch[key] for key in ("input_ids", "attention_mask")}
    found = losses(
        [values for values in model.parameters() if values.requires_grad],
        lambda: model(**rows, labels=labels).loss,
        **dict(lr=5e-5, weight_decay=0.01),
    )
    return {"tokens": batch["input_ids"].tolist(), "labels": labels.tolist(), "losses": found}


def smollm2(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    # The model's own tokenizer divides numbers into digits first (`tokenizer.ggml.pre` is `smollm`), of which
    # transformers' reader of GGUF files knows nothing.
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, **OPTIONS)
    model.eval()
    chat = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    texts = [PASSAGE.split(" But")[0], CODE, NUMBERS, chat]
    tokens = [tokenizer(text)["input_ids"] for text in texts]
    with torch.no_grad():
        logits = [model(torch.tensor([row])).logits[0, -1] for row in tokens]
    some = [(769 * number + 11) % model.config.vocab_size for number in range(64)]
    return {
        "texts": texts,
        "conversation": CONVERSATION,
        "tokens": tokens,
        "tokens_of_logits": some,
        "logits": [rounded(row[some], 6) for row in logits],
        "likeliest": [row.topk(5).indices.tolist() for row in logits],
        "passage": passage(tokenizer, model),
        "greedy": greedy(tokenizer, model),
        "training": smollm2_training(tokenizer, model),
    }


@torch.no_grad()
def passage(tokenizer, model):
    tokens = torch.tensor([tokenizer(PASSAGE)["input_ids"]])
    loss = loss_of_next(model, tokens)
    return {"text": PASSAGE, "tokens": tokens[0].tolist(), "loss": rounded(loss)}


@torch.no_grad()
def greedy(tokenizer, model):
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text)["input_ids"]
    row, lead = list(prompt), float("inf")
    for _ in range(20):
        best = model(torch.tensor([row])).logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        row.append(best.indices[0].item())
    found = row[len(prompt) :]
    print(f"greedy, with a lead of {lead:.3f} at least: {tokenizer.decode(found)!r}")
    return {"conversation": QUESTION, "prompt": prompt, "tokens": found}


def smollm2_training(tokenizer, model):
    """Adapters of all linear layers are trained."""
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")
    model = get_peft_model(model, config).eval()
    trained = []
    for name, values in model.named_parameters():
        if values.requires_grad:
            trained.append(values)
            scale = 0.0 if "lora_B" in name else values.shape[1] ** -0.5
            values.data.copy_(waves(values.shape, scale))
    rows = torch.tensor(tokenizer(PASSAGE)["input_ids"][:96]).reshape(2, 48)
    found = losses(trained, lambda: loss_of_next(model, rows), lr=1e-3, weight_decay=0.0)
    return {"tokens": rows.tolist(), "losses": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dense = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    models = {"minilm": minilm(folder / "minilm"), "smollm2": smollm2(folder / "smollm2")}
    lines = (
        f'"{name}": {{\n' + ",\n".join(f'"{key}": {dense(value)}' for key, value in entries.items()) + "\n}"
        for name, entries in models.items()
    )
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
