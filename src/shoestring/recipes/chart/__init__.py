"""`chart`: a small vision-language model learns to reason about charts from rewards (GRPO).

Qwen2.5-VL-3B with LoRA adapters on every projection of the language model and on the vision tower's dense layers,
which have the same names. Before each update the policy writes the completions that it then learns from. Needs
`pip install 'shoestring[chart]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoestring.config import too_small
from shoestring.errors import UsageError
from shoestring.recipe.extras import require

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.chart.data import Charts
    from shoestring.recipes.chart.policy import Batch, Policy
    from shoestring.recipes.chart.rewards import Reward
    from shoestring.settings import Settings

IMAGE_TOKENS = {"full": 320, "tiny": 32}
"""Tokens that an image takes of the prompt: its 14x14 patches, merged two by two."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "Qwen2.5-VL-3B, or some hundred thousand parameters"] = "full"
    epochs: Annotated[int, "passes over the training data"] = 4
    effective_batch: Annotated[int, "completions in one update, a multiple of generations"] = 4
    generations: Annotated[int, "completions of one prompt, which are judged by one another; at least 2"] = 4
    written_at_once: Annotated[int | None, "completions written at the same time; by default all of an update's"] = None
    seed: Annotated[int, "decides initialisation, sample order, dropout and completions"] = 42
    prompt_len: Annotated[int, "tokens of a prompt at most, those of its image among them"] = 800
    completion_len: Annotated[int, "tokens of a completion at most"] = 768
    lora_r: Annotated[int, "rank of the adapters"] = 8
    weights: Annotated[Literal["fp16", "bf16", "fp32"], "type of the frozen weights; the adapters are fp32"] = "fp16"
    quantization: Annotated[Literal["none", "nf4"], "the frozen weights in 4 bits"] = "none"
    learning_rate: Annotated[float, "constant"] = 1e-5
    weights_from: Annotated[Path | None, "folder of Qwen2.5-VL's weights; by default random ones"] = None
    data: Annotated[Path | None, "folder with rows in JSON and images in png/; by default charts are drawn"] = None
    on_bad_rows: Annotated[Literal["refuse", "skip"], "what happens to rows that cannot be used"] = "refuse"

    def __post_init__(self) -> None:
        least = {"generations": 2, "written_at_once": 1, "completion_len": 1, "lora_r": 1}
        problems = too_small(vars(self), {**least, "prompt_len": IMAGE_TOKENS[self.size] + 1})
        if self.generations > 1 and self.effective_batch % self.generations:
            problems.append(
                f"effective_batch={self.effective_batch}: must be a multiple of generations={self.generations}"
            )
        if self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise UsageError("options of chart cannot be used", problems=problems)


class Chart:
    """Reasoning about charts, learnt from rewards by LoRA adapters on Qwen2.5-VL-3B.

    TRL's GRPO trains it, inside the engine's deadline, checkpoints and record (`trainer`).
    """

    best = ("relaxed_accuracy", "max")

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._whole: Charts | None = None
        """The training part as it was read, of which a subset may be trained on."""

    def model(self) -> nn.Module:
        """Raises UsageError where the extra is not installed."""
        require("chart", "transformers", "peft")
        from shoestring.recipes.chart.policy import SIZES, Policy

        return Policy(
            SIZES[self.options.size],
            rank=self.options.lora_r,
            weights=self.options.weights,
            four_bits=self.options.quantization == "nf4",
        )

    def batch(self, size: int) -> Batch:
        """The longest prompts and completions; see `Batch` for shapes."""
        import torch

        from shoestring.recipes.chart.policy import SIZES, Batch

        shape, length = SIZES[self.options.size], self.options.prompt_len + self.options.completion_len
        tokens = torch.zeros(size, length, dtype=torch.int64)
        tokens[:, 1 : 1 + IMAGE_TOKENS[self.options.size]] = shape.image_token
        mask = torch.ones_like(tokens)
        # Prompts differ in length, and without any padding attention would take a path that most batches do not.
        mask[0, 0] = 0
        return Batch(
            tokens=tokens,
            mask=mask,
            positions=torch.arange(length).expand(size, 3, length).contiguous(),
            patches=torch.zeros(size, shape.patches, shape.patch_values),
            completions=torch.ones(size, self.options.completion_len, dtype=torch.int64),
            advantages=torch.ones(size),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over completions of the mean over a completion's tokens of -log-probability times advantage."""
        per_token: Tensor = -model(batch) * batch.advantages[:, None] * batch.completions
        return (per_token.sum(dim=1) / batch.completions.sum(dim=1).clamp(min=1)).mean()

    def rollout(self, model: Policy, batch: Batch) -> Iterator[list[Tensor]]:
        """Writing the completions; see `generation.decisive_steps`. Groups written later are like the first."""
        from shoestring.recipes.chart.generation import decisive_steps
        from shoestring.recipes.chart.policy import Batch

        return decisive_steps(model, Batch(*(tensor[: self.options.written_at_once] for tensor in batch)))

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(adapters, lr=self.options.learning_rate, weight_decay=0.0)

    def data(self) -> dict[str, Charts]:
        """Rows as TRL takes them.

        Raises UsageError for a folder of another layout, DataError for rows that cannot be used.
        """
        require("chart", "transformers", "peft", "trl")
        from shoestring.recipes.chart.data import drawn_parts, read_parts
        from shoestring.recipes.chart.policy import SIZES

        size = SIZES[self.options.size].pixels
        if self.options.data is None:
            parts = drawn_parts(size)
        else:
            parts = read_parts(self.options.data, size, self.options.on_bad_rows)
        self._whole = parts["train"]
        return parts

    def notes(self) -> list[str]:
        """What a person should know of the data and of the weights."""
        random = [] if self.options.weights_from else ["the weights are random: no weights_from was given"]
        return [*(self._whole.notes if self._whole else []), *random]

    def rewards(self) -> dict[str, Reward]:
        """By name; a completion's reward is their sum."""
        from shoestring.recipes.chart.rewards import REWARDS

        return REWARDS

    def trainer(
        self, settings: Settings, charts: Charts, surviving: Callable[[Any], Any], *, folder: Path, device: Any
    ) -> Any:
        """TRL's trainer, as `surviving` makes it survive."""
        from shoestring.recipes.chart import training

        model, tokenizer = training.policy(self.options, self._whole or charts)
        return training.trainer(
            self.options,
            settings,
            surviving,
            model=model,
            tokenizer=tokenizer,
            charts=charts,
            rewards=self.rewards(),
            folder=folder,
            device=device,
        )

    def learner(self) -> nn.Module:
        """What `trainer` trains, for weights that were saved; once `data()` was called."""
        from shoestring.recipes.chart import training

        assert self._whole is not None
        model: nn.Module = training.learner(self.options, self._whole)
        return model

    def measured(
        self, model: nn.Module, charts: Charts, polled: Callable[[Any, int], Iterator[Any]]
    ) -> dict[str, float]:
        """Relaxed accuracy of the policy on `charts`."""
        from shoestring.recipes.chart import training

        reading = training.reader(self.options, self._whole or charts)
        return training.measured(model, reading, charts, completion_len=self.options.completion_len, polled=polled)
