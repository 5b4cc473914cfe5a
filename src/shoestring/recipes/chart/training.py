"""GRPO by TRL: the trainer of a chart policy, and how it is measured."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shoestring.recipes.chart.answers import is_right, said
from shoestring.recipes.chart.policy import SIZES, TYPES, adapters
from shoestring.recipes.chart.processing import pretrained_tokenizer, processor, trained_tokenizer
from shoestring.recipes.chart.rewards import Reward
from shoestring.recipes.chart.writing import write
from shoestring.settings import Settings

WRITTEN_AT_ONCE = 8
"""Completions, while it is measured."""

if TYPE_CHECKING:
    from shoestring.recipes.chart import Options
    from shoestring.recipes.chart.data import Charts


def trainer(
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
    """A `GRPOTrainer` made by `surviving`, whose own files would lie in `folder`.

    One update is `options.effective_batch` completions in microbatches of at most `settings.micro_batch`.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Quiet(GRPOTrainer):
        """TRL 1.16 asks transformers 5.23 for things by names that will be gone in version 6."""

        def train(self, *args: Any, **kwargs: Any) -> Any:
            with _without_deprecations():
                return super().train(*args, **kwargs)

        def _generate_single_turn(
            self,
            prompt_ids: Any,
            images: Any,  # noqa: ARG002 - those of `multimodal_fields`, before they are processed
            multimodal_fields: Any,
            num_generations: Any,  # noqa: ARG002
            has_tool_images: bool = False,  # noqa: ARG002
        ) -> tuple[list[list[int]], None]:
            """The completions' tokens; log-probabilities are for writers in other processes."""
            at_once = options.written_at_once or len(prompt_ids)
            return _drawn(self, prompt_ids, multimodal_fields, at_once), None

    assert settings.micro_batch is not None
    # TRL's microbatches are all of one size.
    micro_batch = max(size for size in range(1, settings.micro_batch + 1) if options.effective_batch % size == 0)
    accumulation = options.effective_batch // micro_batch
    arguments = _quietly(GRPOConfig)(
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
    made = _quietly(surviving(Quiet))(
        model=model,
        reward_funcs=[_for_trl(name, reward) for name, reward in rewards.items()],
        args=arguments,
        train_dataset=as_dataset(charts),
        processing_class=processor(tokenizer, SIZES[options.size].tokens),
        peft_config=adapters(options.lora_r),
    )
    # peft leaves adapters beside 4-bit weights in bf16, which a T4 only emulates; they are small.
    for parameter in made.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return made


def _drawn(made: Any, prompts: list[list[int]], images: dict[str, Any], at_once: int) -> list[list[int]]:
    """A completion of each prompt, up to its end, so many `at_once`."""
    padding, longest = made.processing_class.tokenizer.pad_token_id, max(map(len, prompts))
    grids = torch.as_tensor(images["image_grid_thw"])
    patches = torch.as_tensor(images["pixel_values"]).split(grids.prod(dim=-1).tolist())
    written: list[list[int]] = []
    for start in range(0, len(prompts), at_once):
        rows = slice(start, start + at_once)
        given = {
            "input_ids": torch.tensor([[padding] * (longest - len(row)) + row for row in prompts[rows]]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts[rows]]),
            "pixel_values": torch.cat(patches[rows]),
            "image_grid_thw": grids[rows],
        }
        model, length = made.accelerator.unwrap_model(made.model), made.max_completion_length
        written += _completions(model, made.processing_class.tokenizer, given, length, sampled=True)
    return written


def _completions(
    model: Any, tokenizer: Any, given: Mapping[str, torch.Tensor], length: int, *, sampled: bool
) -> list[list[int]]:
    ends = _ends(model, tokenizer)
    tokens = write(model, given, length=length, ends=ends, padding=tokenizer.pad_token_id, sampled=sampled)
    return [_up_to(row, ends) for row in tokens.tolist()]


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end a text, the model's own ones and the tokenizer's."""
    own = model.generation_config.eos_token_id
    return sorted({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})


def _up_to(tokens: list[int], ends: list[int]) -> list[int]:
    """Those before the first of `ends`, and it."""
    return tokens[: next((place for place, token in enumerate(tokens, start=1) if token in ends), len(tokens))]


@contextmanager
def _without_deprecations() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _quietly(make: Any) -> Any:
    return _without_deprecations()(make)


def as_dataset(charts: Charts) -> Any:
    """The rows as `datasets` has them, which TRL wants: numbers, made into rows when they are asked for."""
    from datasets import Dataset

    def rows(numbers: dict[str, list[int]]) -> dict[str, list[Any]]:
        found = [charts[number] for number in numbers["row"]]
        return {name: [row[name] for row in found] for name in found[0]}

    make: Any = Dataset
    return make.from_dict({"row": list(range(len(charts)))}).with_transform(rows)


def policy(options: Options, charts: Charts) -> tuple[Any, Any]:
    """Qwen2.5-VL without adapters and its tokenizer: pretrained, or random with one learnt from `charts`."""
    return pretrained(options) if options.weights_from else random(options, charts)


def reader(options: Options, charts: Charts) -> Any:
    """The processor of the policy's texts and images."""
    where, shape = options.weights_from, SIZES[options.size]
    tokenizer = pretrained_tokenizer(str(where)) if where else trained_tokenizer(charts, shape.text["vocab_size"])
    return processor(tokenizer, shape.tokens)


def pretrained(options: Options) -> tuple[Any, Any]:
    """Weights and tokenizer from a folder or, by name, from the hub's cache or the hub."""
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    where = str(options.weights_from)
    make: Any = AutoModelForImageTextToText
    four_bits: Any = BitsAndBytesConfig
    quantization = {
        "quantization_config": four_bits(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=TYPES[options.weights]
        )
    }
    return (
        make.from_pretrained(
            where,
            dtype=TYPES[options.weights],
            use_safetensors=True,
            trust_remote_code=False,
            **(quantization if options.quantization == "nf4" else {}),
        ),
        pretrained_tokenizer(where),
    )


def random(options: Options, charts: Charts) -> tuple[Any, Any]:
    """A model as its configuration makes it, and a tokenizer that was learnt from the questions."""
    from transformers import AutoModelForImageTextToText

    shape = SIZES[options.size]
    tokenizer = trained_tokenizer(charts, shape.text["vocab_size"])
    make: Any = AutoModelForImageTextToText.from_config
    model = make(shape.config(), dtype=TYPES[options.weights])
    # A generation without a cache would read all that is written anew for each token.
    model.config.use_cache = model.generation_config.use_cache = True
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


@_without_deprecations()
def learner(options: Options, charts: Charts) -> Any:
    """The policy under its adapters, as `trainer` trains it."""
    import peft

    return peft.get_peft_model(policy(options, charts)[0], adapters(options.lora_r))


@_without_deprecations()
def measured(
    model: Any, reading: Any, charts: Charts, *, completion_len: int, polled: Callable[[Any, int], Iterator[Any]]
) -> dict[str, float]:
    """Relaxed accuracy and the share of completions with an answer, written greedily; `reading` is the processor."""
    right = answered = 0
    for rows, _ in polled(_some(charts), len(charts)):
        for row, completion in zip(rows, _written(model, reading, rows, completion_len), strict=True):
            answer = said(completion, "answer")
            answered += answer is not None
            right += answer is not None and is_right(answer, str(row["label"]))
    return {"relaxed_accuracy": right / len(charts), "answered": answered / len(charts)}


def _some(charts: Charts) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Rows in their order, as many as are written at once."""
    for start in range(0, len(charts), WRITTEN_AT_ONCE):
        rows = [charts[index] for index in range(start, min(start + WRITTEN_AT_ONCE, len(charts)))]
        yield rows, len(rows)


def _written(model: Any, reading: Any, rows: list[dict[str, Any]], completion_len: int) -> list[str]:
    """The completion of each row, greedily."""
    given = reading.apply_chat_template(
        conversation=[_conversation(row) for row in rows],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True},
    )
    tokens = _completions(model, reading.tokenizer, given, completion_len, sampled=False)
    texts: list[str] = reading.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def _conversation(row: dict[str, Any]) -> list[dict[str, Any]]:
    system, user = row["prompt"]
    image = {"type": "image", "image": row["image"]}
    return [
        {**system, "content": [{"type": "text", "text": system["content"]}]},
        {**user, "content": [image, {"type": "text", "text": user["content"]}]},
    ]


def _for_trl(name: str, reward: Reward) -> Any:
    """A reward as TRL calls it: of all completions of a batch, with the columns of their rows."""

    @functools.wraps(reward)
    def of_all(completions: list[Any], **columns: Any) -> list[float | None]:
        names = [column for column, values in columns.items() if isinstance(values, list)]
        return [
            reward(_text(completion), {column: columns[column][place] for column in names})
            for place, completion in enumerate(completions)
        ]

    of_all.__name__ = name
    return of_all


def _text(completion: Any) -> str:
    """Of a completion as messages, or as it is."""
    if isinstance(completion, str):
        return completion
    content = completion[0]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
