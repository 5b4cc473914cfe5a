"""The options of `chart`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from shoestring.base.config import too_small
from shoestring.base.errors import UsageError
from shoestring.recipe.option_notes import Cheaper

EVALUATION_BATCH = 8
"""Completions that an evaluation generates at the same time, as long as there is memory for them."""
IMAGE_TOKENS = {"full": 320, "tiny": 32}
"""Tokens of an image in the prompt: its 14x14 patches, merged two by two."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `chart`."""

    by_size: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            "max_updates": 32,
            "effective_batch": 8,
            "prompt_len": 300,
            "completion_len": 12,
            "weights": "fp32",
            "learning_rate": 2e-2,
            "rewards": "digits",
        }
    }

    size: Annotated[Literal["full", "tiny"], "Qwen2.5-VL-3B, or a model of some hundred thousand parameters"] = "full"
    epochs: Annotated[int, "passes over the training data"] = 4
    effective_batch: Annotated[int, "completions in one update, a multiple of generations"] = 4
    generations: Annotated[
        int,
        "completions per prompt, whose rewards are compared with each other; at least 2",
        Cheaper("fewer generations", order=2),
    ] = 4
    written_at_once: Annotated[
        int | None,
        "completions generated at the same time; by default all completions of an update",
        Cheaper(
            "completions generated in smaller groups: other random draws, otherwise no more than rounding",
            changes_learning=False,
            unset="effective_batch",
        ),
    ] = None
    seed: Annotated[int, "seed of the initialization, sample order, dropout and sampling of completions"] = 42
    prompt_len: Annotated[
        int,
        "maximum number of tokens of a prompt, including its image; rows with a longer one cannot be used",
        Cheaper("shorter prompts", order=1),
    ] = 800
    completion_len: Annotated[int, "maximum number of tokens of a completion", Cheaper("shorter completions")] = 768
    lora_r: Annotated[int, "rank of the adapters"] = 8
    weights: Annotated[Literal["fp16", "bf16", "fp32"], "dtype of the frozen weights; the adapters are fp32"] = "fp16"
    quantization: Annotated[Literal["none", "nf4"], "4-bit quantization of the frozen weights"] = "none"
    double_quantization: Annotated[bool, "scales of 4-bit weights in 8 bits"] = False
    rewards: Annotated[
        Literal["published", "guide", "digits"],
        "the seven rewards of format, answer and reasoning; guide: exactly as the code of the guide computes them, and "
        "a prompt for them; digits: the share of digits alone, which random weights learn in a minute",
    ] = "published"
    system_prompt: Annotated[
        Path | None, "text file with the system message; by default a description of the format that is rewarded"
    ] = None
    keep_aspect: Annotated[
        bool, "whether images keep their ratio of width to height, as the guide's do, within the same number of tokens"
    ] = False
    learning_rate: Annotated[float, "constant learning rate"] = 1e-5
    weights_from: Annotated[
        Path | str | None, "Qwen2.5-VL weights, a folder or a name on the hub; by default random weights"
    ] = None
    download: Annotated[bool, "whether weights may be downloaded from the hub"] = False
    data: Annotated[
        Path | None,
        "folder with rows in JSON and images in png/, ChartQA's folder, a folder of datasets' save_to_disk, or Parquet;"
        " by default synthetic charts",
    ] = None
    on_bad_rows: Annotated[
        Literal["refuse", "skip"], "refuse data with unusable rows, or skip and count these rows"
    ] = "refuse"

    def __post_init__(self) -> None:
        minimums = {"generations": 2, "written_at_once": 1, "completion_len": 1, "lora_r": 1}
        problems = too_small(vars(self), {**minimums, "prompt_len": IMAGE_TOKENS[self.size] + 1})
        if self.generations > 1 and self.effective_batch % self.generations:
            problems.append(
                f"effective_batch={self.effective_batch}: must be a multiple of generations={self.generations}"
            )
        if self.double_quantization and self.quantization == "none":
            problems.append("double_quantization=true: there are no 4-bit weights without quantization=nf4")
        if self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise UsageError("options of chart cannot be used", problems=problems)
