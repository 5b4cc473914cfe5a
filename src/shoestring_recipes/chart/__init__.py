"""`chart`: a small vision-language model learns to reason about charts from rewards (GRPO).

The model is Qwen2.5-VL-3B with LoRA adapters on every projection of the language model and on the vision tower's dense
layers, which have the same names. Before each update the policy generates the completions that the update trains on.
Needs `pip install -e '.[chart]'`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.packages.requirements import require
from shoestring_recipes.chart.options import EVALUATION_BATCH, IMAGE_TOKENS, Options
from shoestring_recipes.chart.shares import PART_SHARES

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.base.settings import Settings
    from shoestring.recipe.exports import Exported, Format
    from shoestring.recipe.generation import Step
    from shoestring.recipe.inputs import Input
    from shoestring_recipes.chart.data import Charts
    from shoestring_recipes.chart.policy import Batch, Policy
    from shoestring_recipes.chart.presentation import Presentation
    from shoestring_recipes.chart.rewards import Reward


class Chart:
    """LoRA adapters on Qwen2.5-VL-3B learn to reason about charts from rewards.

    TRL's GRPO trainer trains them, with the engine's deadline, checkpoints and record (`trainer`).
    """

    row = "a question about a chart"
    part_shares: Mapping[str, float] = PART_SHARES

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._whole: Charts | None = None
        """The complete training part; training may use a subset of it."""
        self._tokenizer: Any = None
        """The tokenizer of the policy, once it is known."""
        self._instruction: str | None = None
        """The system message of a run, once it is restored."""

    def model(self) -> nn.Module:
        """Build the policy for planning. Raises UsageError without the extra, and for unusable pretrained weights."""
        require("chart", "transformers", "peft")
        from shoestring_recipes.chart.building import check_weights
        from shoestring_recipes.chart.policy import SIZES, Policy

        check_weights(self.options)
        return Policy(
            SIZES[self.options.size],
            rank=self.options.lora_r,
            weights=self.options.weights,
            four_bits=self.options.quantization == "nf4",
            double=self.options.double_quantization,
        )

    def batch(self, size: int) -> Batch:
        """Return a batch of the longest prompts and completions; see `Batch` for shapes."""
        import torch

        from shoestring_recipes.chart.policy import SIZES, Batch

        shape, length = SIZES[self.options.size], self.options.prompt_len + self.options.completion_len
        tokens = torch.zeros(size, length, dtype=torch.int64)
        tokens[:, 1 : 1 + IMAGE_TOKENS[self.options.size]] = shape.image_token
        mask = torch.ones_like(tokens)
        # Most batches are padded, and attention without any padding would use another kernel.
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
        """Return the mean over completions of the mean over their tokens of -log-probability times advantage."""
        per_token: Tensor = -model(batch) * batch.advantages[:, None] * batch.completions
        return (per_token.sum(dim=1) / batch.completions.sum(dim=1).clamp(min=1)).mean()

    def count_updates(self, samples: int) -> int:
        """Return the updates of an epoch as TRL counts them: of whole groups of prompts, without the remainder."""
        return max(1, samples // (self.options.effective_batch // self.options.generations))

    def rollout(self, model: Policy, batch: Batch) -> Iterator[Step]:
        """Simulate generating the first group of completions (see `rollout.py`); later groups are like it."""
        from shoestring_recipes.chart.policy import Batch
        from shoestring_recipes.chart.rollout import simulate_generation

        count, size = len(batch.tokens), min(self.options.written_at_once or len(batch.tokens), len(batch.tokens))
        first = Batch(*(tensor[:size] for tensor in batch))
        prompts = -(-size // self.options.generations)
        return simulate_generation(model, first, prompts=prompts, groups=-(-count // size))

    def evaluation_work(self, model: Policy, batch: Batch) -> Iterator[Step]:
        """Simulate generating one completion of each of the prompts."""
        from shoestring_recipes.chart.rollout import simulate_generation

        return simulate_generation(model, batch, prompts=len(batch.tokens), groups=1)

    def host_work(self) -> dict[str, float]:
        """Return the seconds of encoding a completion's prompt and of its rewards, as measured now."""
        from shoestring_recipes.chart import host_work, training

        charts = self._whole or self._read_parts()["train"]
        return host_work.measure(
            charts, training.conversation, self._processor(charts), self.rewards(), self.options.completion_len
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(adapters, lr=self.options.learning_rate, weight_decay=0.0)

    def data(self) -> dict[str, Charts]:
        """Return the rows in TRL's format, by part.

        Raises UsageError for a folder of another layout, DataError for rows that cannot be used, such as those with a
        prompt of more than `prompt_len` tokens.
        """
        require("chart", "transformers", "peft", "trl")
        from shoestring_recipes.chart.lengths import without_long_prompts

        parts = self._read_parts()
        self._whole = parts["train"]
        parts = without_long_prompts(parts, self._load_tokenizer(), self.options)
        self._whole = parts["train"]
        return parts

    def whole(self) -> Charts:
        """Return all rows as one part."""
        from shoestring_recipes.chart.data import join_parts

        return join_parts(self._read_parts())

    def inputs(self, source: Any) -> Iterable[Input]:
        """Return the questions in a folder, a file or a list (`prediction.read_inputs`)."""
        from shoestring_recipes.chart.prediction import read_inputs

        return read_inputs(source, self._presentation())

    def collate(self, samples: Sequence[Any]) -> list[Any]:
        """Return the samples themselves: their prompts are tokenized with those of the batch."""
        return list(samples)

    def predict(self, model: nn.Module, batch: list[Any]) -> list[dict[str, Any]]:
        """Return `prediction` (the answer), `reasoning` and `text` of each sample, generated greedily."""
        from shoestring_recipes.chart.prediction import answer
        from shoestring_recipes.chart.training import generate_texts

        return list(map(answer, generate_texts(model, self._processor(), batch, self.options.completion_len)))

    def targets(self, batch: list[Any]) -> list[Any]:
        return [sample.get("label") for sample in batch]

    def identify(self, dataset: Charts, index: int) -> Any:
        return dataset.rows[index].id

    def save_preprocessing(self, folder: Path) -> None:
        """Write the tokenizer, the configurations of images and base model, and the user's system message."""
        from shoestring_recipes.chart.building import save_preprocessing
        from shoestring_recipes.chart.presentation import write_instruction

        save_preprocessing(self.options, self._load_tokenizer(), folder)
        if self.options.system_prompt:
            write_instruction(folder, self._presentation().instruction)

    def load_preprocessing(self, folder: Path) -> None:
        """Use the tokenizer and the system message that `save_preprocessing` has written."""
        require("chart", "transformers", "peft")
        from shoestring_recipes.chart.building import restore_tokenizer
        from shoestring_recipes.chart.presentation import restore_instruction

        self._tokenizer = restore_tokenizer(folder)
        self._instruction = restore_instruction(folder) if self.options.system_prompt else None

    def notes(self) -> list[str]:
        """Return notes for the user about the data and the weights."""
        notes = self._whole.notes if self._whole else []
        if not self.options.weights_from:
            return [*notes, "the weights are random, because weights_from is not set"]
        from shoestring.integrations.huggingface.pretrained import weights_notes

        return [*notes, *weights_notes("weights_from", self.options.weights_from, download=self.options.download)]

    def rewards(self) -> dict[str, Reward]:
        """Return the reward functions by name; a completion's reward is their sum."""
        from shoestring_recipes.chart import guide_rewards, rewards

        sets: dict[str, dict[str, Reward]] = {
            "digits": {"digits": rewards.digits},
            "guide": guide_rewards.REWARDS,
            "published": rewards.REWARDS,
        }
        return sets[self.options.rewards]

    @property
    def is_pretrained(self) -> bool:
        return self.options.weights_from is not None

    def random_parts(self) -> tuple[str, ...]:
        """Return the model, unless it is pretrained."""
        return () if self.is_pretrained or self.options.size == "tiny" else ("model",)

    @property
    def best(self) -> tuple[str, str]:
        return ("digits" if self.options.rewards == "digits" else "relaxed_accuracy"), "max"

    def describe(self, charts: Charts, index: int) -> dict[str, Any]:
        return charts.describe(index)

    def trainer(
        self, settings: Settings, charts: Charts, surviving: Callable[[Any], Any], *, folder: Path, device: Any
    ) -> Any:
        """Return TRL's trainer, of the class that `surviving` derives from it."""
        from shoestring_recipes.chart import building, training

        tokenizer = self._load_tokenizer(charts)
        model = building.build_base(self.options, tokenizer)
        return training.build_trainer(
            self.options,
            settings,
            surviving,
            model=model,
            tokenizer=copy.deepcopy(tokenizer),  # the trainer changes it
            charts=charts,
            rewards=self.rewards(),
            folder=folder,
            device=device,
        )

    def learner(self) -> nn.Module:
        """Return the model that `trainer` trains, to load saved weights into.

        The tokenizer must be known: call `data()` or `load_preprocessing()` first, unless `weights_from` is set.
        """
        require("chart", "transformers", "peft")
        from shoestring_recipes.chart import building

        model: nn.Module = building.build_learner(self.options, self._load_tokenizer())
        return model

    def pretrained(self, path: Path) -> nn.Module:
        """Return the policy with whole weights, or with adapters on `weights_from`, from a folder."""
        require("chart", "transformers", "peft")
        from shoestring_recipes.chart import adapters, building

        if adapters.is_adapter(path):
            # The base of other adapters is only known if it is pretrained.
            self._tokenizer = self._tokenizer or building.build_tokenizer(self.options, None)
            model: nn.Module = adapters.load_adapters(path, building.build_base(self.options, self._tokenizer))
            return model
        self.options, self._tokenizer = replace(self.options, weights_from=path.absolute()), None
        return self.learner()

    def measured(
        self,
        model: nn.Module,
        charts: Charts,
        polled: Callable[[Any, int], Iterator[Any]],
        size: int = EVALUATION_BATCH,
    ) -> dict[str, Any]:
        """Return the policy's relaxed accuracy on `charts`, with `rewards=digits` the mean of that reward, and
        examples.
        """
        from shoestring_recipes.chart import training

        processor, rewards = self._processor(charts), self.rewards() if self.options.rewards == "digits" else {}
        metrics: dict[str, Any] = training.evaluate(
            model, processor, charts, rewards, completion_len=self.options.completion_len, polled=polled, size=size
        )
        return metrics

    def illustrate(self, model: nn.Module, charts: Charts, index: int) -> dict[str, bytes]:  # noqa: ARG002
        """Return the image of a chart."""
        from shoestring_recipes.thumbnails import encode_thumbnail

        return {"chart": encode_thumbnail(charts[index]["image"])}

    def _read_parts(self) -> dict[str, Charts]:
        from shoestring_recipes.chart.data import make_synthetic_parts, read_parts

        presentation = self._presentation()
        if self.options.data is None:
            return make_synthetic_parts(presentation)
        return read_parts(self.options.data, presentation, self.options.on_bad_rows)

    def _presentation(self) -> Presentation:
        """Return how rows are shown to the policy."""
        from shoestring_recipes.chart.policy import SIZES
        from shoestring_recipes.chart.presentation import Presentation, choose_instruction

        if self._instruction is None:
            self._instruction = choose_instruction(self.options.system_prompt, self.options.rewards)
        return Presentation(SIZES[self.options.size].pixels, self.options.keep_aspect, self._instruction)

    def _load_tokenizer(self, charts: Charts | None = None) -> Any:
        """Return the tokenizer; without pretrained weights it is trained on the complete training part, or `charts`."""
        from shoestring_recipes.chart.building import build_tokenizer

        if self._tokenizer is None:
            self._tokenizer = build_tokenizer(self.options, self._whole or charts)
        return self._tokenizer

    def _processor(self, charts: Charts | None = None) -> Any:
        from shoestring_recipes.chart.building import options_processor

        return options_processor(self.options, self._load_tokenizer(charts))

    @property
    def exports(self) -> dict[str, Format]:
        """Merged weights have the dtype of the frozen ones, which 4-bit weights are not to be."""
        from shoestring.recipe.exports import Format

        adapter = Format(write=self._writer("write_adapter"), tensors=self._adapter_tensors)
        if self.options.quantization != "none":
            return {"adapter": adapter}
        merged, both = (Format(write=self._writer(name)) for name in ("write_merged", "write_both"))
        return {"huggingface": both, "adapter": adapter, "merged": merged}

    def _writer(self, name: str) -> Callable[[Any, Path, Sequence[Any]], Exported]:
        """Return the function of `export.py` with this policy's processor."""

        def write(model: Any, folder: Path, samples: Sequence[Any]) -> Exported:
            from shoestring_recipes.chart import export

            exported: Exported = getattr(export, name)(
                model,
                folder,
                samples,
                options=self.options,
                processor=self._processor(),
                instruction=self._presentation().instruction,
            )
            return exported

        return write

    def _adapter_tensors(self, model: nn.Module) -> Iterable[Tensor]:
        """Return what is written of an adapter: its tensors, and a base with random weights, which nobody has."""
        from shoestring_recipes.chart.export import adapter_tensors

        return adapter_tensors(model) if self.options.weights_from else model.state_dict().values()
