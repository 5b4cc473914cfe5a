"""The guide's GRPO: TRL's own trainer as its fork configures it, one completion in a microbatch.

Its activations are checkpointed, which is TRL's default; all completions of an update are written at once, which is
TRL's default as well. bf16 where the GPU has it (fp16 where it only emulates it), fp32 on a CPU. Its checkpoint is what
transformers' trainer saves: adapters, AdamW's states, schedule, random numbers, the processor. Here after an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from torch import nn
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from shoestring.recipe import LoadedRecipe
from shoestring.recipes.chart import training
from shoestring.train.seeding import derive, seed_all

JUDGED = "reward"
"""By what the policy is judged afterwards, in place of the loss, which GRPO holds near 0 whatever is learnt."""


HELD_OUT = 16
"""Charts that it is judged on, a completion of each."""


def digits(completion: str, _: Mapping[str, Any]) -> float:
    """The share of a completion that is digits: random weights can earn it, and none of the seven rewards."""
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


def recipe(kind: type, _: object) -> type:
    """The recipe's class, rewarded for digits and not evaluated."""

    def data(self: Any) -> dict[str, Any]:
        return {"train": super(rewarded, self).data()["train"]}

    own = {"data": data, "rewards": lambda _: {"digits": digits}}
    rewarded: Any = type(kind.__name__, (kind,), own)
    return rewarded


def samples(loaded: LoadedRecipe) -> int:
    """Completions of an epoch. The charts are drawn before anything is measured, for the guide's are files."""
    charts = loaded.data()["train"]
    for number in range(len(charts)):
        charts[number]
    return len(charts) * int(loaded.options["generations"])


def first_model(loaded: LoadedRecipe) -> nn.Module:
    """A policy with adapters."""
    model: nn.Module = training.learner(loaded.recipe.options, _charts(loaded))
    return model


def train(loaded: LoadedRecipe, model: nn.Module, guide: Mapping[str, Any], folder: Path, device: torch.device) -> None:
    """Train `model` in place; the checkpoint lies in `folder`."""
    options = loaded.recipe.options
    half = device.type == "cuda"
    bf16 = half and torch.cuda.is_bf16_supported(including_emulation=False)
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=guide["micro_batch"],
        gradient_accumulation_steps=loaded.effective_batch // guide["micro_batch"],
        num_generations=options.generations,
        max_completion_length=options.completion_len,
        num_train_epochs=loaded.epochs,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        seed=loaded.seed,
        bf16=bf16,
        fp16=half and not bf16,
        use_cpu=device.type == "cpu",
        remove_unused_columns=False,
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[training._for_trl(name, reward) for name, reward in loaded.recipe.rewards().items()],
        args=arguments,
        train_dataset=training.as_dataset(loaded.data()["train"]),
        processing_class=_reading(loaded),
    )
    trainer.train()


def held_out(loaded: LoadedRecipe, model: nn.Module, device: torch.device) -> float:
    """The mean reward of completions, drawn as in training, about charts of which it has seen none."""
    recipe, reading = loaded.recipe, _reading(loaded)
    charts = super(type(recipe), recipe).data()["validation"]
    given = reading.apply_chat_template(
        conversation=[training._conversation(charts[index]) for index in range(HELD_OUT)],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"padding": True},
    ).to(device)  # fmt: skip
    seed_all(derive(loaded.seed, "held out"))
    written: Any = model.to(device).eval()
    with torch.no_grad():
        tokens = written.generate(**given, max_new_tokens=recipe.options.completion_len, do_sample=True, top_k=0)
    texts = reading.tokenizer.batch_decode(tokens[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(digits(text, {}) for text in texts) / len(texts)


def _charts(loaded: LoadedRecipe) -> Any:
    loaded.recipe.data()
    return loaded.recipe._whole


def _reading(loaded: LoadedRecipe) -> Any:
    return training.reader(loaded.recipe.options, _charts(loaded))
