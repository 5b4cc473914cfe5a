"""Training of a chart policy with TRL's GRPO, and its evaluation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe import evidence
from shoestring_recipes.chart.answers import is_correct, parse_tag
from shoestring_recipes.chart.building import options_processor, silence, without_deprecations
from shoestring_recipes.chart.policy import lora_config
from shoestring_recipes.chart.processing import encode_prompts
from shoestring_recipes.chart.rewards import Reward
from shoestring_recipes.chart.writing import generate

if TYPE_CHECKING:
    from shoestring_recipes.chart.data import Charts
    from shoestring_recipes.chart.options import Options


def build_trainer(
    options: Options,
    settings: Settings,
    surviving: Callable[[Any], Any],
    *,
    model: Any,
    tokenizer: Any,
    charts: Charts,
    rewards: dict[str, Reward],
    folder: Path,
    device: torch.device,
) -> Any:
    """Build a `GRPOTrainer` of the class that `surviving` returns; `folder` is its output directory.

    One update has `options.effective_batch` completions, divided among `settings.gpus` processes, in microbatches of at
    most `settings.micro_batch`.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Quiet(GRPOTrainer):
        """GRPOTrainer without deprecation warnings: TRL 1.16 uses names of transformers 5.23 that version 6 removes."""

        def train(self, *args: Any, **kwargs: Any) -> Any:
            with without_deprecations():
                return super().train(*args, **kwargs)

        def _generate_single_turn(
            self,
            prompt_ids: Any,
            images: Any,  # noqa: ARG002 - the images of `multimodal_fields` before processing
            multimodal_fields: Any,
            *_: Any,  # `num_generations`, which TRL 1.10 does not pass, and `has_tool_images`
            **__: Any,
        ) -> tuple[list[list[int]], None]:
            """Return the completions' tokens; log-probabilities are only for generators in other processes."""
            group_size = options.written_at_once or len(prompt_ids)
            return _sample_completions(self, prompt_ids, multimodal_fields, group_size), None

    assert settings.micro_batch is not None
    share, remainder = divmod(options.effective_batch, settings.gpus or 1)
    if remainder:
        raise UsageError(
            f"effective_batch={options.effective_batch} cannot be divided among {settings.gpus} processes: TRL gives "
            "the same number of completions to each",
            hint="choose another effective_batch, or gpus=1",
        )
    # TRL's microbatches have equal sizes.
    micro_batch = max(size for size in range(1, settings.micro_batch + 1) if share % size == 0)
    accumulation = share // micro_batch
    arguments = silence(GRPOConfig)(
        output_dir=str(folder),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        num_generations=options.generations,
        max_completion_length=options.completion_len,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        seed=options.seed,
        beta=0.0,
        fp16=settings.precision == "fp16",
        bf16=settings.precision == "bf16",
        use_cpu=device.type == "cpu",
        gradient_checkpointing=settings.checkpointing not in (None, "no"),
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
        remove_unused_columns=False,
    )
    trainer = silence(surviving(Quiet))(
        model=model,
        reward_funcs=[_for_trl(name, reward) for name, reward in rewards.items()],
        args=arguments,
        train_dataset=as_dataset(charts),
        processing_class=options_processor(options, tokenizer),
        peft_config=lora_config(options.lora_r),
    )
    # peft creates adapters on 4-bit weights in bf16, which a T4 only emulates; in fp32 they are still small.
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return trainer


def _sample_completions(
    trainer: Any, prompts: list[list[int]], images: dict[str, Any], group_size: int
) -> list[list[int]]:
    """Sample a completion of each prompt, up to its end, in groups of `group_size`."""
    padding, longest = trainer.processing_class.tokenizer.pad_token_id, max(map(len, prompts))
    grids = torch.as_tensor(images["image_grid_thw"])
    patches = torch.as_tensor(images["pixel_values"]).split(grids.prod(dim=-1).tolist())
    completions: list[list[int]] = []
    for start in range(0, len(prompts), group_size):
        rows = slice(start, start + group_size)
        inputs = {
            "input_ids": torch.tensor([[padding] * (longest - len(row)) + row for row in prompts[rows]]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts[rows]]),
            "pixel_values": torch.cat(patches[rows]),
            "image_grid_thw": grids[rows],
        }
        model, length = trainer.accelerator.unwrap_model(trainer.model), trainer.max_completion_length
        completions += _generate_tokens(model, trainer.processing_class.tokenizer, inputs, length, do_sample=True)
    return completions


def _generate_tokens(
    model: Any, tokenizer: Any, inputs: Mapping[str, torch.Tensor], length: int, *, do_sample: bool
) -> list[list[int]]:
    ends = _end_tokens(model, tokenizer)
    padding = tokenizer.pad_token_id
    tokens = generate(model, inputs, length=length, end_tokens=ends, padding=padding, do_sample=do_sample)
    return [_truncate(row, ends) for row in tokens.tolist()]


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end a text: the model's and the tokenizer's."""
    own = model.generation_config.eos_token_id
    return sorted({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})


def _truncate(tokens: list[int], ends: list[int]) -> list[int]:
    """Return the tokens up to and including the first of `ends`."""
    return tokens[: next((count for count, token in enumerate(tokens, start=1) if token in ends), len(tokens))]


def as_dataset(charts: Charts) -> Any:
    """Return the rows as a Hugging Face dataset, which TRL requires: row numbers that are loaded on access."""
    from datasets import Dataset

    def load_rows(numbers: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = [charts[number] for number in numbers["row"]]
        return {name: [row[name] for row in rows] for name in rows[0]}

    dataset: Any = Dataset
    return dataset.from_dict({"row": list(range(len(charts)))}).with_transform(load_rows)


@silence
def evaluate(
    model: Any,
    processor: Any,
    charts: Charts,
    rewards: Mapping[str, Reward],
    *,
    completion_len: int,
    polled: Callable[[Any, int], Iterator[Any]],
    size: int,
) -> dict[str, Any]:
    """Return the relaxed accuracy, the share of completions with an answer, the mean of each of the `rewards`, and
    examples of the completions.

    Completions are generated greedily, `size` of them at the same time.
    """
    scores: dict[str, list[float]] = {name: [] for name in ("relaxed_accuracy", "answered", *rewards)}
    completions: list[str] = []
    for rows, _ in polled(_batches(charts, size), len(charts)):
        for row, completion in zip(rows, generate_texts(model, processor, rows, completion_len), strict=True):
            answer = parse_tag(completion, "answer")
            scores["relaxed_accuracy"].append(float(answer is not None and is_correct(answer, str(row["label"]))))
            scores["answered"].append(float(answer is not None))
            for name, reward in rewards.items():
                scores[name].append(reward(completion, row) or 0.0)
            completions.append(completion)
    samples = [charts.describe(index) for index in range(len(charts))]
    texts = {
        "question": [sample["query"] for sample in samples],
        "completion": completions,
        "true_answer": [sample["label"] for sample in samples],
    }
    quality = [sum(values) for values in zip(*scores.values(), strict=True)]
    return {
        **{name: sum(values) / len(charts) for name, values in scores.items()},
        evidence.KEY: {"examples": evidence.examples(quality, scores, texts=texts)},
    }


def _batches(charts: Charts, size: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield the rows in order, in batches of at most `size`, with the size of each batch."""
    for start in range(0, len(charts), size):
        rows = [charts[index] for index in range(start, min(start + size, len(charts)))]
        yield rows, len(rows)


@silence
def generate_texts(model: Any, processor: Any, rows: list[dict[str, Any]], completion_len: int) -> list[str]:
    """Generate the completion of each row greedily."""
    inputs = encode_prompts(processor, [conversation(row) for row in rows])
    tokens = _generate_tokens(model, processor.tokenizer, inputs, completion_len, do_sample=False)
    texts: list[str] = processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def conversation(row: dict[str, Any]) -> list[dict[str, Any]]:
    system, user = row["prompt"]
    image = {"type": "image", "image": row["image"]}
    return [
        {**system, "content": [{"type": "text", "text": system["content"]}]},
        {**user, "content": [image, {"type": "text", "text": user["content"]}]},
    ]


def _for_trl(name: str, reward: Reward) -> Any:
    """Wrap a reward as a reward function of TRL, which takes a batch of completions and the columns of their rows."""

    @functools.wraps(reward)
    def score_batch(completions: list[Any], **columns: Any) -> list[float | None]:
        names = [column for column, values in columns.items() if isinstance(values, list)]
        return [
            reward(_completion_text(completion), {column: columns[column][index] for column in names})
            for index, completion in enumerate(completions)
        ]

    score_batch.__name__ = name
    return score_batch


def _completion_text(completion: Any) -> str:
    """Return the text of a completion, which is a text or a list of messages."""
    if isinstance(completion, str):
        return completion
    content = completion[0]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
