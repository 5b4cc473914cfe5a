"""The guide's GRPO: TRL's own trainer as its fork configures it, one completion in a microbatch.

Its activations are checkpointed, which is TRL's default; all completions of an update are written at once, which is
TRL's default as well. bf16 where the GPU has it (fp16 where it only emulates it), fp32 on a CPU. Its checkpoint is what
transformers' trainer saves: adapters, AdamW's states, schedule, random numbers, the processor. Here after an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from torch import nn
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from shoestring.data.seeding import derive, seed_all
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipes.chart import Chart, training

if TYPE_CHECKING:
    from shoestring.recipes.chart.rewards import Reward


def digits(completion: str, _: Mapping[str, Any]) -> float:
    """The share of a completion that is digits: random weights can earn it, and none of the seven rewards."""
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


class Digits(Chart):
    """The recipe, rewarded for digits and judged by them: the loss GRPO holds near 0, whatever is learnt."""

    def rewards(self) -> dict[str, Reward]:
        return {"digits": digits}

    def measured(self, model: Any, charts: Any, _: object) -> dict[str, float]:
        """The mean reward of completions, drawn as in training."""
        reading = read_by(self)
        given = reading.apply_chat_template(
            conversation=[training._conversation(charts[index]) for index in range(len(charts))],
            add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(model.device)  # fmt: skip
        seed_all(derive(self.options.seed, "held out"))
        model.eval()
        with torch.no_grad():
            tokens = model.generate(**given, max_new_tokens=self.options.completion_len, do_sample=True, top_k=0)
        texts = reading.tokenizer.batch_decode(tokens[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        return {"reward": sum(digits(text, {}) for text in texts) / len(texts)}


RECIPE = Digits


def read_by(recipe: Chart) -> Any:
    """The processor of its texts and images, once `data()` was called."""
    assert recipe._whole is not None
    return training.reader(recipe.options, recipe._whole)


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place; the checkpoint lies in `folder`."""
    options = loaded.recipe.options
    half = device.type == "cuda"
    bf16 = half and torch.cuda.is_bf16_supported(including_emulation=False)
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=loaded.effective_batch,
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
        processing_class=read_by(loaded.recipe),
    )
    trainer.train()
