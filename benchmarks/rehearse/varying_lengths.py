"""A script of the kind that fails in the night: fine-tuning on texts of varying lengths, with a few very long ones.

Nothing in it knows of Shoestring. On a T4 it runs out of memory late, at the update whose batch holds the longest text:

    shoestring rehearse benchmarks/rehearse/varying_lengths.py --on kaggle-t4
    shoestring rehearse benchmarks/rehearse/varying_lengths.py --on kaggle-t4 -- --checkpointing
"""

import argparse
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 50_257
UPDATES = 200
LATE = 160
"""The longest text is in the batch of this update, counted from 0."""


def texts(batch_size: int, seed: int = 0) -> list[list[torch.Tensor]]:
    """Return batches of token sequences: most of some hundred tokens, one of 1,024."""
    generator = random.Random(seed)
    lengths = [min(700, int(generator.lognormvariate(5.2, 0.5))) for _ in range(UPDATES * batch_size)]
    lengths[LATE * batch_size] = 1024
    samples = [torch.randint(VOCABULARY, (length,)) for length in lengths]
    return [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]


def main() -> None:
    """Train for 200 updates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for number, batch in enumerate(texts(options.batch)):
        tokens = pad_sequence(batch, batch_first=True).cuda()
        labels = pad_sequence(batch, batch_first=True, padding_value=-100).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_ids=tokens, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number % 50 == 0:
            print(f"update {number}: loss {loss.item():.2f}", flush=True)
    print("finished")


if __name__ == "__main__":
    main()
