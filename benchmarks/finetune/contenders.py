"""The contenders: the same fine-tuning with Shoestring and with TRL's trainers in several configurations.

compare.py starts each in its own process as `python -m benchmarks.finetune.contenders QUESTION`. The data are one epoch
of `updates` times `effective_batch` rows. A contender leaves an adapter that peft loads, and answers with the learnt
tokens a second of all updates after the first, and the peaks of memory.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.finetune.conversations import prompt_of, read_jsonl
from benchmarks.recipes.meter import Meter
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a contender trains; every field is the same for all contenders of a comparison."""

    model: str
    data: str
    method: str
    updates: int
    effective_batch: int
    """Rows, or pairs, in an update."""
    micro_batch: int
    """Rows of a padded microbatch; a packed one is one bin of `seq_len` tokens."""
    seq_len: int
    checkpointing: bool
    lora_r: int
    learning_rate: float
    seed: int
    threads: int
    device: str = "cpu"
    precision: str = "fp32"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished training."""

    adapter: Path
    trainable_parameters: int
    rows_of_update: float
    """The mean number of rows in an update; TRL packs bins first, and an update is made of whole bins."""
    details: dict[str, Any]


class Tally:
    """Counts learnt tokens and CPU time by update: `add` is called for every microbatch."""

    def __init__(self) -> None:
        self.by_update = [0]
        self.cpu_times: list[float] = []
        """CPU seconds of the process at the end of each update."""
        self.microbatch_tokens: list[int] = []
        """Tokens of each microbatch that the model receives, with padding."""
        register_optimizer_step_post_hook(self._end_update)

    def _end_update(self, *_: Any) -> None:
        self.cpu_times.append(time.process_time())
        self.by_update.append(0)

    def add(self, learnt: int, tokens: int) -> None:
        """Count a microbatch with this many learnt tokens among `tokens`, padding included."""
        self.by_update[-1] += learnt
        self.microbatch_tokens.append(tokens)


Contender = Callable[[Question, Path, Tally], Trained]


def peft_config(question: Question) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=question.lora_r,
        lora_alpha=2 * question.lora_r,
        target_modules="all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )


def trl_arguments(question: Question, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a trainer's configuration that make it the same training as Shoestring's."""
    return {
        "per_device_train_batch_size": question.micro_batch,
        "gradient_accumulation_steps": question.effective_batch // question.micro_batch,
        "max_length": question.seq_len,
        "gradient_checkpointing": question.checkpointing,
        "bf16": question.precision == "bf16",
        "fp16": question.precision == "fp16",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        **changes,
    }


def trl(question: Question, folder: Path, tally: Tally, **changes: Any) -> Trained:
    """Train with TRL under the same settings as Shoestring, with `changes`."""
    arguments = trl_arguments(question, **changes)
    if arguments.get("packing"):
        bins = packed_bins(question)
        arguments["per_device_train_batch_size"] = 1
        arguments["gradient_accumulation_steps"] = max(round(bins / question.updates), 1)
        rows_of_update = question.updates * question.effective_batch / bins * arguments["gradient_accumulation_steps"]
    else:
        rows_of_update = question.effective_batch
    return _trl(question, folder, tally, arguments, rows_of_update)


def trl_defaults(question: Question, folder: Path, tally: Tally) -> Trained:
    """Train with TRL's defaults: of its configuration only the updates and the learning rate are set."""
    return _trl(question, folder, tally, {}, 8)


def _trl(question: Question, folder: Path, tally: Tally, arguments: dict[str, Any], rows_of_update: float) -> Trained:
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    config, base = (SFTConfig, SFTTrainer) if question.method == "sft" else (DPOConfig, DPOTrainer)

    class Counting(base):  # type: ignore[misc, valid-type]
        """The trainer, which counts the tokens of its microbatches."""

        def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
            tokens = inputs["input_ids"]
            learnt = inputs["labels"] != -100 if "labels" in inputs else inputs["completion_mask"] == 1
            tally.add(count_learnt(tokens, learnt, self._tokenizer.eos_token_id), tokens.numel())
            return super().compute_loss(model, inputs, *rest, **named)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """Use the schedule of Shoestring's recipe."""
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda update: factor(update, num_training_steps)
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

    factor = schedule()
    trainer = Counting(
        model=question.model,
        args=config(
            output_dir=str(folder / "trainer"),
            max_steps=question.updates,
            learning_rate=question.learning_rate,
            seed=question.seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=question.device == "cpu",
            model_init_kwargs={"dtype": "float32"},
            **arguments,
        ),
        train_dataset=trl_dataset(question),
        peft_config=peft_config(question),
    )
    trainer.train()
    trainer.save_model(str(folder / "adapter"))
    return Trained(
        adapter=folder / "adapter",
        trainable_parameters=trainable(trainer.model),
        rows_of_update=rows_of_update,
        details={name: str(value) for name, value in arguments.items()},
    )


def count_learnt(tokens: Tensor, learnt: Tensor, stop_token: int) -> int:
    """Return the number of learnt tokens (rows, length) up to the stop token of each answer.

    A template may put a line break after the stop token, which TRL learns as well: it is not counted for anyone.
    """
    return int((learnt[:, 1:] & (tokens[:, :-1] != stop_token)).sum())


def trl_dataset(question: Question) -> Any:
    """Return the rows in the shapes in which TRL learns the answers alone, with the number of tokens of each row."""
    from datasets import Dataset

    read = read_jsonl(Path(question.data))
    rows = [row if "chosen" in row else {"prompt": prompt_of(row), "completion": row["messages"][-1:]} for row in read]
    lengths = [len(tokens) for tokens in whole_rows(question)]
    return Dataset.from_list([{**row, "length": length} for row, length in zip(rows, lengths, strict=True)])


def packed_bins(question: Question) -> int:
    """Return how many bins TRL makes of the data."""
    from datasets import Dataset
    from trl import pack_dataset

    rows = Dataset.from_dict({"input_ids": whole_rows(question)})
    return len(pack_dataset(rows, seq_length=question.seq_len, strategy="bfd"))


def whole_rows(question: Question) -> list[list[int]]:
    """Return the tokens of each row; of a pair those of the longer answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(question.model)

    def encode(messages: list[dict[str, str]]) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False))

    return [
        max((encode(row["prompt"] + row[name]) for name in ("chosen", "rejected")), key=len)
        if "chosen" in row
        else encode(row["messages"])
        for row in read_jsonl(Path(question.data))
    ]


def schedule() -> Callable[[int, int], float]:
    """Return the factor on the learning rate of Shoestring's recipe, by update and number of updates."""
    from shoestring.recipe.finding import find

    recipe: Any = find("finetune").recipe
    return lambda update, total: recipe.schedule(update, total, total)


def shoestring(question: Question, folder: Path, tally: Tally, **changes: Any) -> Trained:
    """Train with Shoestring's command, in this process."""
    import shoestring as tool
    from shoestring.recipe.finding import find

    kind: Any = type(find("finetune").recipe)
    untouched = kind.loss
    stop_token = stop_token_of(question.model)

    def counting(recipe: Any, model: nn.Module, batch: Any, *rest: Any, **named: Any) -> Any:
        tally.add(*batch_tokens(batch, stop_token))
        return untouched(recipe, model, batch, *rest, **named)

    kind.loss = counting
    options = {
        "model": question.model,
        "data": question.data,
        "method": question.method,
        "validation": 0.0,
        "seq_len": question.seq_len,
        "effective_batch": question.effective_batch,
        "micro_batch": question.micro_batch,
        "checkpointing": "full" if question.checkpointing else "no",
        "precision": question.precision,
        "lora_r": question.lora_r,
        "lora_targets": "linear",
        "learning_rate": question.learning_rate,
        "seed": question.seed,
        **changes,
    }
    run = folder / "run"
    tool.train("finetune", run=run, on="cpu" if question.device == "cpu" else "local", **options)
    kind.loss = untouched
    return Trained(
        adapter=run / "light",
        trainable_parameters=adapter_parameters(run / "light"),
        rows_of_update=question.effective_batch,
        details={name: str(value) for name, value in changes.items()},
    )


def batch_tokens(batch: dict[str, Tensor], stop_token: int) -> tuple[int, int]:
    """Return the learnt tokens of a batch of the recipe (`count_learnt`), and all of its tokens with padding."""
    tokens = batch["input_ids"]
    before = batch["places"] if "places" in batch else batch["positions"] - 1
    return int((tokens.flatten()[before] != stop_token).sum()), tokens.numel()


def stop_token_of(model: str) -> int:
    from transformers import AutoTokenizer

    return int(AutoTokenizer.from_pretrained(model).eos_token_id)


def trainable(model: nn.Module) -> int:
    """Return the number of parameters that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def adapter_parameters(folder: Path) -> int:
    """Return the number of parameters of a saved adapter."""
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def with_changes(function: Callable[..., Trained], **changes: Any) -> Contender:
    return lambda question, folder, tally: function(question, folder, tally, **changes)


CONTENDERS: dict[str, dict[str, Contender]] = {
    "sft": {
        "TRL, defaults": trl_defaults,
        "TRL, padded": with_changes(trl),
        "TRL, by length": with_changes(trl, train_sampling_strategy="group_by_length"),
        "TRL, packed": with_changes(trl, packing=True, packing_strategy="bfd"),
        "TRL, padding-free": with_changes(trl, padding_free=True, max_length=None),
        "Shoestring, packed": with_changes(shoestring, packing="yes", micro_batch=1),
        "Shoestring, by length": with_changes(shoestring, packing="no"),
    },
    "dpo": {
        "TRL, defaults": trl_defaults,
        "TRL, padded": with_changes(trl),
        # Otherwise the trainer removes the column `length` before it groups by it.
        "TRL, by length": with_changes(trl, train_sampling_strategy="group_by_length", remove_unused_columns=False),
        "Shoestring, by length": with_changes(shoestring, packing="no"),
    },
}
"""By method. TRL's padding-free batches ignore `max_length`: no row here is longer. `precompute_ref_log_probs` of its
DPOTrainer is left out: in one epoch it computes the same forwards, only before the training that is timed. Nobody packs
pairs.
"""


def resident_bytes(name: str) -> int:
    """Return `VmRSS`, or its peak `VmHWM`, of this process."""
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def import_contender(name: str) -> None:
    """Import what a contender needs, so that memory and time do not include it."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401

    import shoestring.api  # noqa: F401

    if name.startswith("TRL"):
        from trl import DPOTrainer, SFTTrainer  # noqa: F401


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    question = Question(**request["question"])
    torch.set_num_threads(question.threads)
    import_contender(request["name"])
    imported_bytes, started = resident_bytes("VmRSS"), time.monotonic()
    meter, tally = Meter(torch.device(question.device), question.updates), Tally()
    trained = CONTENDERS[question.method][request["name"]](question, Path(request["folder"]), tally)
    learnt = tally.by_update[1 : question.updates]
    seconds = meter.seconds_per_update(question.updates) * len(learnt)
    answer = {
        "learnt_tokens_per_second": sum(learnt) / seconds,
        "learnt_tokens_per_cpu_second": sum(learnt) / (tally.cpu_times[question.updates - 1] - tally.cpu_times[0]),
        "update_seconds": seconds / len(learnt),
        "learnt_tokens": sum(learnt),
        "largest_microbatch_tokens": max(tally.microbatch_tokens),
        "mean_microbatch_tokens": sum(tally.microbatch_tokens) / len(tally.microbatch_tokens),
        "peak_bytes": meter.peak_bytes,
        "resident_peak_bytes": imported_bytes + meter.peak_bytes,
        "whole_seconds": time.monotonic() - started,
        "rows_of_update": trained.rows_of_update,
        "trainable_parameters": trained.trainable_parameters,
        "adapter": str(trained.adapter),
        "details": trained.details,
    }
    with os.fdopen(request["to"], "w") as answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
