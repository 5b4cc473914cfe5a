"""The loss of a saved adapter on held-out rows, computed alike whoever trained it.

compare.py starts it in a process of its own as `python -m benchmarks.finetune.held_out QUESTION`: neither TRL nor
Shoestring takes part in it. Rows are evaluated one by one, without padding.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from benchmarks.finetune.conversations import prompt_of, read_jsonl
from torch import Tensor, nn


def encoded(tokenizer: Any, prompt: list[dict[str, str]], answer: list[dict[str, str]]) -> tuple[Tensor, int]:
    """Return the tokens (1, length) of a prompt and its answer through the stop token, and the prompt's length."""
    before = tokenizer.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False)
    tokens = tokenizer.apply_chat_template([*prompt, *answer], tokenize=True, return_dict=False)
    assert tokens[: len(before)] == before, "the template changes its own prefix"
    end = tokens.index(tokenizer.eos_token_id, len(before)) + 1
    return torch.tensor([tokens[:end]]), len(before)


def answer_log_probability(model: nn.Module, tokens: Tensor, prompt_length: int) -> tuple[Tensor, int]:
    """Return the log-probability of the answer's tokens, summed in float64, and their number."""
    logits = model(input_ids=tokens[:, :-1]).logits[0, prompt_length - 1 :]
    targets = tokens[0, prompt_length:]
    losses = nn.functional.cross_entropy(logits.double(), targets, reduction="sum")
    return -losses, len(targets)


def sft_loss(model: nn.Module, tokenizer: Any, rows: list[dict[str, Any]]) -> float:
    """Return the mean negative log-likelihood of the answers' tokens."""
    results = [answer_log_probability(model, *encoded(tokenizer, prompt_of(row), row["messages"][-1:])) for row in rows]
    return -float(sum(total for total, _ in results)) / sum(count for _, count in results)


def dpo_loss(model: Any, tokenizer: Any, rows: list[dict[str, Any]], beta: float) -> float:
    """Return the mean loss of the pairs, with the model without its adapter as the reference."""
    losses = []
    for row in rows:
        margins = []
        for name in ("chosen", "rejected"):
            tokens = encoded(tokenizer, prompt_of(row), row[name])
            ours, _ = answer_log_probability(model, *tokens)
            with model.disable_adapter():
                reference, _ = answer_log_probability(model, *tokens)
            margins.append(ours - reference)
        losses.append(-nn.functional.logsigmoid(beta * (margins[0] - margins[1])))
    return float(torch.stack(losses).mean())


def loss_of_adapter(question: dict[str, Any]) -> float:
    """Load the model with an adapter, and return its loss on the rows of `data`."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(question["model"])
    base = AutoModelForCausalLM.from_pretrained(question["model"], dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, question["adapter"]).eval()
    rows = read_jsonl(Path(question["data"]))
    with torch.no_grad():
        return sft_loss(model, tokenizer, rows) if "messages" in rows[0] else dpo_loss(model, tokenizer, rows, 0.1)


def packed_difference_of_trl(question: dict[str, Any]) -> float:
    """Return the largest difference of logits between rows in a bin of TRL and the same rows alone, as a share of the
    largest logit: with an attention that ignores the bounds of the rows it is not small.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(question["model"])
    model = AutoModelForCausalLM.from_pretrained(question["model"], dtype=torch.float32).eval()
    rows = [
        tokenizer.apply_chat_template(prompt_of(row), tokenize=True, return_dict=False)
        for row in read_jsonl(Path(question["data"]))[:3]
    ]
    collate = DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id, padding_free=True)
    flat = [token for row in rows for token in row]
    batch = collate([{"input_ids": flat, "labels": flat, "seq_lengths": [len(row) for row in rows]}])
    batch.pop("labels")
    with torch.no_grad():
        alone = torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in rows])
        packed = model(**batch, use_cache=False).logits[0]
    return float((packed - alone).abs().max() / alone.abs().max())


def main() -> None:
    warnings.simplefilter("ignore")
    question = json.loads(sys.argv[1])
    torch.set_num_threads(question["threads"])
    answer = loss_of_adapter(question) if "adapter" in question else packed_difference_of_trl(question)
    with os.fdopen(question["to"], "w") as answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
