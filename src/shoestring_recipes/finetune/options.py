"""The options of `finetune`, and their effect on training and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.recipe.option_notes import Cheaper
from shoestring_recipes.rows import OnBadRows

GgufType: TypeAlias = Literal["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"]
"""The types that the package `gguf` can write."""

_ANSWER_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `finetune`."""

    by_size: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"epochs": 4, "lora_r": None, "learning_rate": 3e-3, "answer_tokens": 32}
    }

    size: Annotated[
        Literal["full", "tiny"], "tiny: a short run, in which a small model with random weights learns synthetic tasks"
    ] = "full"
    model: Annotated[
        Path | str | None,
        "the model to train: a folder of transformers, a GGUF file, or a name on the hub; none: a small model with "
        "random weights",
    ] = None
    enlarge_vocabulary: Annotated[
        bool, "add rows to the embedding and the head for ids of the tokenizer that are beyond them, and train these"
    ] = False
    download: Annotated[bool, "download the model from the hub if it is not on this machine"] = False
    data: Annotated[
        Path | None,
        "a JSONL, JSON, CSV or Parquet file, or a folder of them, with messages, prompt and completion, text, or "
        "chosen and rejected; none: small synthetic conversations",
    ] = None
    columns: Annotated[
        str | None, "names of your columns, as ours:theirs: messages:chat or prompt:question,completion:answer"
    ] = None
    on_bad_rows: Annotated[OnBadRows, "refuse unusable rows, or skip and count them"] = "refuse"
    validation: Annotated[
        float, "share of the rows that is set aside for validation if the data has no part of that name"
    ] = 0.05
    method: Annotated[
        Literal["sft", "dpo"], "learn the answers, or direct preference optimization of pairs of answers"
    ] = "sft"
    beta: Annotated[float, "of DPO: how strongly the model is kept close to the reference model"] = 0.1
    template: Annotated[Path | None, "a file with a chat template in Jinja, in place of the tokenizer's"] = None
    as_chat: Annotated[
        bool,
        "write a prompt and a completion that are texts as messages, with the chat template if there is one; no: join "
        "them as they are",
    ] = True
    train_on: Annotated[
        Literal["assistant", "completion", "all"],
        "the tokens that are learned: all answers of the assistant, only the last one, or all tokens",
    ] = "assistant"
    seq_len: Annotated[
        int, "the largest number of tokens of a sample; longer ones are cut at their end", Cheaper("shorter sequences")
    ] = 1024
    loss_chunk: Annotated[
        int | None,
        "tokens whose logits exist at the same time; none: those of the whole microbatch",
        Cheaper("the loss in smaller chunks, which changes no more than rounding", changes_learning=False),
    ] = 1024
    prompts: Annotated[
        Path | None,
        "a JSONL file of messages or prompt, which the model answers before training and after each epoch; none: "
        "rows of the validation data",
    ] = None
    answer_tokens: Annotated[
        int | None, "the largest number of tokens of a generated answer; none: 128, and 1024 in a conversation"
    ] = None
    gguf_type: Annotated[GgufType, "type of the weights in an exported GGUF file"] = "F16"
    epochs: Annotated[int, "passes over the training data"] = 1
    effective_batch: Annotated[int, "rows in one update"] = 16
    learning_rate: Annotated[
        float | None, "of AdamW, after a linear warm-up; none: 2e-4 for LoRA, 2e-5 for all weights, 5e-6 for DPO"
    ] = None
    seed: Annotated[int, "decides initialization, sample order and dropout"] = 0

    @property
    def answer_limit(self) -> int:
        """The largest number of tokens of an answer to a prompt in a file or in the data."""
        return self.answer_tokens or _ANSWER_TOKENS

    def __post_init__(self) -> None:
        least = {"seq_len": 2, "loss_chunk": 1, "answer_tokens": 1}
        problems = config.too_small(vars(self), least)
        if not 0 <= self.validation < 1:
            problems.append(f"validation={self.validation}: must be at least 0 and less than 1")
        for name in ("beta", "learning_rate"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                problems.append(f"{name}={value}: must be more than 0")
        if self.size == "tiny" and self.model is not None:
            problems.append("size=tiny is the run without a model: leave out one of them")
        if problems:
            raise UsageError("options of finetune cannot be used", problems=problems)
