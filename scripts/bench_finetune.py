"""The PyTorch side of `cargo xtask bench finetune`: a pretrained language model learns drawn tokens.

It speaks the protocol of `bench-player finetune` (benches/player/src/finetune.rs), and has the same model, tokens and
adapters, so the losses of both can be compared. The model is transformers', the adapters are PEFT's. Needs:

    pip install torch transformers peft
"""

import argparse
import math
import os
import platform

os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import torch
import transformers
from torch.nn import functional as F

import bench_step
from bench_step import BATCHES, TOKENS, hashes, peak_rss_mb, uniform


class Finetune(bench_step.Run):
    """A language model in training, which `bench_step.Run` measures."""

    def __init__(self, args):
        self.args, self.taken, self.step_seconds = args, 0, math.inf
        # Its attention is scaled_dot_product_attention.
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        vocabulary = model.config.vocab_size
        if args.rank:
            # PEFT's `all-linear` leaves out the last layer.
            config = peft.LoraConfig(
                r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            model = peft.get_peft_model(model, config)
            for name, values in model.named_parameters():
                if "lora_A" in name:
                    start = (2 * uniform(0, values.numel()) - 1) * values.shape[1] ** -0.5
                    values.data.copy_(start.reshape(values.shape))
        self.model = model.train()
        self.trained = [values for values in model.parameters() if values.requires_grad]
        # Seven times as fast as foreach=True on a CPU.
        self.optimizer = torch.optim.AdamW(self.trained, lr=args.lr, fused=True)
        shape = (args.batch_size, args.length + 1)
        drawn = [hashes(TOKENS + index, math.prod(shape)) % vocabulary for index in range(BATCHES)]
        drawn = [tokens.reshape(shape) for tokens in drawn]
        self.batches = [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in drawn]

    def step(self):
        xs, ys = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.precision == "bf16"):
            logits = self.model(input_ids=xs, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten())
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder of Hugging Face")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters; 0 trains all parameters")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--lr", type=float, required=True)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    run = Finetune(args)
    loading = peak_rss_mb()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # From now on the peak is that of the steps.
    losses = run.warm_up(args.warm_up)
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}"
    bench_step.say(
        "ready",
        ranks=1,
        version=f"{versions}, Python {platform.python_version()}, AdamW fused",
        warm_up_losses=losses,
        gradient_bytes=4 * sum(values.numel() for values in run.trained),
        **{f"loading_{name}": value for name, value in loading.items()},
    )
    while (asked := bench_step.request()) is not None:
        bench_step.say("sample", **run.sample(asked), **peak_rss_mb())
    bench_step.say("done")


if __name__ == "__main__":
    main()
