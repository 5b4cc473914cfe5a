"""The guide's GRPO: the trainer of TRL as its fork configures it, with one completion per microbatch.

Activation checkpointing and generating all completions of an update at once are defaults of TRL. Precision is bf16
where the GPU supports it (fp16 where it only emulates bf16), and fp32 on a CPU. The checkpoint is that of the trainer
of transformers, saved after an epoch: adapters, AdamW states, schedule, random number states and the processor.
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

from shoestring.recipe.options import LoadedRecipe
from shoestring.training.data.seeding import derive, seed_all
from shoestring_recipes.chart import Chart, building, training

if TYPE_CHECKING:
    from shoestring_recipes.chart.rewards import Reward


def digits(completion: str, _: Mapping[str, Any]) -> float:
    """Return the share of digits in a completion, a reward that random weights can earn, unlike the seven rewards."""
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


class Digits(Chart):
    """The recipe with digits as reward and metric, because the loss of GRPO stays near 0 whatever the model learns."""

    def rewards(self) -> dict[str, Reward]:
        return {"digits": digits}

    def measured(self, model: Any, charts: Any, _: object) -> dict[str, float]:
        """Return the mean reward of completions, sampled as in training."""
        processor = build_processor(self)
        inputs = processor.apply_chat_template(
            conversation=[training._conversation(charts[index]) for index in range(len(charts))],
            add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(model.device)  # fmt: skip
        seed_all(derive(self.options.seed, "held out"))
        model.eval()
        with torch.no_grad():
            tokens = model.generate(**inputs, max_new_tokens=self.options.completion_len, do_sample=True, top_k=0)
        texts = processor.tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return {"reward": sum(digits(text, {}) for text in texts) / len(texts)}


RECIPE = Digits


def build_processor(recipe: Chart) -> Any:
    """Build the processor of texts and images; `data()` must have been called before."""
    assert recipe._whole is not None
    return building.reader(recipe.options, recipe._whole)


def train(loaded: LoadedRecipe, model: nn.Module, folder: Path, device: torch.device) -> None:
    """Train `model` in place and save the checkpoint in `folder`."""
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
        processing_class=build_processor(loaded.recipe),
    )
    trainer.train()
