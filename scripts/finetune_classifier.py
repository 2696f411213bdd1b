"""The recipe of examples/finetune_classifier.rs in PyTorch: a pretrained encoder learns to classify texts.

    pip install torch transformers
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 scripts/finetune_classifier.py --model FOLDER \
        --class pos=train.pos --class neg=train.neg --test pos=test.pos --test neg=test.neg --seed 0

Each rank is a process of its own. The head's start, the order of the texts and the dropout are PyTorch's, so a run is
compared with one of the example by the accuracy that several seeds reach.
"""

import argparse
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def examples(files, names, encoding):
    """The texts of files of one text a line, each with the place of its class."""
    texts = []
    for option in files:
        name, file = option.split("=", 1)
        with open(file, encoding=encoding) as lines:
            texts += [(line.strip(), names.index(name)) for line in lines if line.strip()]
    return texts


@torch.no_grad()
def accuracy(model, batches, count):
    """The share of all `count` test texts; every rank has a part of them."""
    right = torch.zeros(1)
    model.eval()
    for inputs, labels in batches:
        right += (model(**inputs).logits.argmax(1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder of Hugging Face")
    parser.add_argument("--class", dest="classes", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--test", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--windows-1252", action="store_true")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16 is torch.autocast")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(args.seed)
    names = sorted({option.split("=", 1)[0] for option in args.classes})
    # The example's attention has no dropout for its probabilities.
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(names), attention_probs_dropout_prob=0.0, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    torch.manual_seed(1000 * args.seed + rank)  # the dropout's noise
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0, fused=True)

    def batch(texts):
        inputs = tokenizer(
            [text for text, _ in texts], padding=True, truncation=True, max_length=args.length, return_tensors="pt"
        )
        return inputs, torch.tensor([label for _, label in texts])

    encoding = "cp1252" if args.windows_1252 else "utf-8"
    train, test = (examples(files, names, encoding) for files in (args.classes, args.test))
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, collate_fn=batch, drop_last=True)
    evaluation = DataLoader(test[rank::ranks], args.batch_size, collate_fn=batch)

    training = 0.0
    for epoch in range(args.epochs):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
                loss = torch.nn.functional.cross_entropy(model(**inputs).logits, labels)
            loss.backward()
            optimizer.step()
        training += time.perf_counter() - start
        found = accuracy(model.module, evaluation, len(test))
        if rank == 0:
            print(f"epoch {epoch}: evaluation accuracy {found:.6f}, {training:.1f} s of training", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
