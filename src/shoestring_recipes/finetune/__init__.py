"""The `finetune` recipe: fine-tune a causal language model on your own conversations, texts or pairs of answers.

By default LoRA adapters are trained on frozen weights. `method=dpo` learns from pairs, with the adapter switched off as
the reference. Needs `pip install -e '.[finetune]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import require
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring_recipes.finetune.options import Options

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import Format
    from shoestring.recipe.inputs import Input
    from shoestring_recipes.finetune.interface import Interface
    from shoestring_recipes.finetune.loading import Data
    from shoestring_recipes.finetune.rendering import Renderer
    from shoestring_recipes.finetune.samples import Samples

EXTRA = "finetune"
LEARNING_RATES = {"lora": 2e-4, "all weights": 2e-5, "dpo": 5e-6}
CONVERSATION_TOKENS = 1024
"""The longest answer in a conversation, which Ctrl-C can end."""
WARM_UP = 100
"""Updates of warm-up; a run of less than 1,000 updates has a tenth of its updates instead."""


class Finetune(EvaluatesBatches):
    """Fine-tuning of a causal language model on conversations."""

    adaptation_defaults: Mapping[str, Any] = {"lora_r": 16, "lora_targets": "linear", "weights": "auto"}
    prediction_options = ("answer_tokens",)
    keeps_stored_type = True
    length_option = "seq_len"
    row = "a conversation"
    clip_norm = 1.0

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._data: Data | None = None
        self._interface: Interface | None = None
        self._built_renderer: Renderer | None = None

    @property
    def is_pretrained(self) -> bool:
        return self.options.model is not None

    @property
    def maps_files(self) -> bool:
        """Whether the weights are in safetensors: a GGUF file is unpacked, and files of torch are read."""
        model = Path(self.options.model or "")
        is_of_torch = model.is_dir() and any(model.glob("*.bin")) and not any(model.glob("*.safetensors"))
        return model.suffix != ".gguf" and not is_of_torch

    @property
    def has_synthetic_lengths(self) -> bool:
        return self.options.data is None

    @property
    def capacity(self) -> float:
        return self.options.seq_len

    def length_source(self) -> str:
        """Return the name of the model, whose tokenizer and template decide the lengths."""
        return f"the tokenizer of {self.options.model or 'the tiny model'}"

    @property
    def part_shares(self) -> dict[str, float]:
        return {"train": 1 - self.options.validation, "validation": self.options.validation}

    @property
    def _is_dpo(self) -> bool:
        return self.options.method == "dpo"

    def model(self) -> nn.Module:
        """Return the model in the type of its files, or with random weights. Raises UsageError if it cannot be read."""
        require(EXTRA, "transformers", "peft")
        from shoestring_recipes.finetune import building, vocabulary

        if self.options.model is None:
            return building.build_random(self._interface_of_model().config)
        rows = vocabulary.rows_of(self._interface_of_model().config) if self.options.enlarge_vocabulary else None
        return building.load_model(building.find_source(self.options, weights=True), rows=rows)

    def skeleton(self) -> nn.Module:
        """Return the model of the run's configuration without its weights."""
        require(EXTRA, "transformers", "peft")
        from shoestring_recipes.finetune import building

        return building.build_random(self._interface_of_model().config)

    def batch(self, size: int) -> Any:
        """Return the largest batch: `size` rows of `seq_len` tokens (`batches.Batch`), or `size` pairs of them."""
        if self._is_dpo:
            from shoestring_recipes.finetune.preference import largest_pairs

            return largest_pairs(size, self.options.seq_len)
        from shoestring_recipes.finetune.batches import largest

        return largest(size, self.options.seq_len)

    @property
    def packed_batch(self) -> Callable[[int], Any] | None:
        """The largest batch of packed rows (`_packed_batch`); None for pairs."""
        from importlib.util import find_spec

        return None if self._is_dpo or find_spec("transformers") is None else self._packed_batch

    def _packed_batch(self, size: int) -> Any:
        """Return `size` full rows of packed samples. Raises UsageError for a model that cannot separate samples."""
        from shoestring_recipes.finetune.batches import largest_packed

        if not self._separates_samples:
            raise UsageError(
                "packing=yes: this model does not separate samples of a packed row, which would attend to each other",
                hint="packing=no",
            )
        return largest_packed(size, self.options.seq_len)

    @cached_property
    def _separates_samples(self) -> bool:
        from shoestring_recipes.finetune import building, tiny

        if self._interface is not None:
            return building.separates_samples(self._interface.config)
        if self.options.model is None:
            return building.separates_samples(tiny.configuration())
        with suppress(UsageError):  # which is raised where the model is needed: one with all weights in a run is not
            return building.separates_samples(building.read_configuration(building.find_source(self.options)))
        return True

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, float | int]:
        """Return the sum of the losses of learned tokens and their number; for pairs, of pairs."""
        options = self.options
        if self._is_dpo:
            from shoestring_recipes.finetune.preference import preference_loss

            return preference_loss(model, batch, beta=options.beta, loss_chunk=options.loss_chunk)
        from shoestring_recipes.finetune.losses import token_loss

        return token_loss(model, batch, options.loss_chunk)

    def data(self) -> dict[str, Samples]:
        """Return the datasets `train` and `validation`, without samples in which nothing is learned.

        Raises DataError with all unusable rows, and if the model would never learn to stop (`inspection`).
        """
        data = self._read()
        data.require_learnable()
        self._questions()  # a file of prompts that cannot be used is an error before training
        return {"train": data.train, **({"validation": data.validation} if len(data.validation) else {})}

    def whole(self) -> Samples:
        """Return all rows as one dataset."""
        from shoestring_recipes.finetune.samples import Samples

        parts = self._read().train, self._read().validation
        samples = [sample for part in parts for sample in part.samples]
        return Samples(samples, [row for part in parts for row in part.rows])

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return a batch of samples, of packed rows of them, of pairs, or of prompts."""
        from shoestring_recipes.finetune import batches, prediction
        from shoestring_recipes.finetune.samples import PairSample

        if isinstance(samples[0], prediction.Prompt):
            return prediction.collate_prompts(samples)
        if isinstance(samples[0], PairSample):
            from shoestring_recipes.finetune.preference import collate_pairs

            return collate_pairs(samples)
        return batches.collate(samples)

    def length(self, dataset: Samples, index: int) -> int:
        """Return the tokens of a sample; of a pair, those of its longer answer."""
        return len(dataset[index])

    def describe(self, dataset: Samples, index: int) -> dict[str, Any]:
        """Return the place of a sample in the data, its number of tokens, and its beginning."""
        from shoestring_recipes.finetune.preview import describe

        return describe(dataset, index, self._renderer())

    def identify(self, dataset: Samples, index: int) -> str:
        return dataset.rows[index].place

    def preview(self) -> str:
        """Return a sample as the model receives it, with its learned tokens marked, the lengths of all, and notes."""
        from shoestring_recipes.finetune.preview import preview_text

        data = self._read()
        return preview_text(data.train, data.inspection, self._renderer(), data.notes)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW over the trained parameters."""
        import torch

        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        has_adapters = len(trained) < sum(1 for _ in model.parameters())
        kind = "dpo" if self._is_dpo else "lora" if has_adapters else "all weights"
        rate = self.options.learning_rate or LEARNING_RATES[kind]
        return torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)

    def schedule(self, update: int, _updates_per_epoch: int, total_updates: int) -> float:
        """Return a factor that rises linearly during the warm-up and then falls linearly to almost 0."""
        warm_up = min(WARM_UP, max(1, total_updates // 10))
        if update < warm_up:
            return (update + 1) / (warm_up + 1)
        return (total_updates - update) / max(1, total_updates - warm_up)

    def evaluate_batch(self, model: nn.Module, batch: Any) -> Any:
        """Return the sum of the losses of a batch and the number of learned tokens; for pairs see `preference`."""
        options = self.options
        if self._is_dpo:
            from shoestring_recipes.finetune.preference import evaluate_pairs

            return evaluate_pairs(model, batch, beta=options.beta, loss_chunk=options.loss_chunk)
        from shoestring_recipes.finetune.losses import token_loss

        return token_loss(model, batch, options.loss_chunk)

    def combine(self, results: Sequence[Any]) -> dict[str, float]:
        """Return `loss`, the mean over learned tokens, and its exponential `perplexity`; for pairs see `preference`."""
        if self._is_dpo:
            from shoestring_recipes.finetune.preference import combine_pairs

            return combine_pairs(results)
        from shoestring_recipes.finetune.losses import mean_token_loss

        return mean_token_loss(results)

    def inputs(self, source: Any) -> Iterable[Input]:
        """Return the prompts in a file or a list (`prediction.read_inputs`), or those of the validation data."""
        from shoestring_recipes.finetune.columns import parse_columns
        from shoestring_recipes.finetune.prediction import read_inputs, read_questions

        renderer = self._renderer()
        if source is None:
            return read_questions(self._read().validation.rows, renderer)
        longest = self._interface_of_model().longest_prompt(self.options.answer_limit)
        return read_inputs(source, renderer, columns=parse_columns(self.options.columns), longest=longest)

    def predict(self, model: nn.Module, batch: Any) -> list[dict[str, Any]]:
        """Return the greedy answer to each prompt, its number of tokens, and whether it ended by itself."""
        from shoestring_recipes.finetune.prediction import predict

        interface, prompts = self._interface_of_model(), self._prompts(batch)
        return predict(model, prompts, self._renderer(), max_tokens=self.options.answer_limit, pad=interface.padding)

    def targets(self, batch: Any) -> list[str | None]:
        """Return the true answers of a batch."""
        from shoestring_recipes.finetune.prediction import targets

        return targets(self._prompts(batch))

    def _prompts(self, batch: Any) -> Any:
        """Return a batch of prompts; that of samples without their last answers, which are the targets."""
        from shoestring_recipes.finetune.prediction import split_answers
        from shoestring_recipes.finetune.preference import chosen_labels

        if "prompts" in batch:
            return batch
        if self._is_dpo:
            return split_answers(*chosen_labels(batch), self._renderer())
        from shoestring_recipes.finetune.batches import labels_of

        return split_answers(batch["input_ids"], labels_of(batch), self._renderer())

    def answers(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Return the model's answers to the prompts of the option `prompts`, or of the first rows of validation."""
        from shoestring_recipes.finetune.prediction import answer_questions

        interface, options = self._interface_of_model(), self.options
        return answer_questions(
            model,
            self._questions(),
            self._renderer(),
            max_tokens=options.answer_limit,
            longest=interface.longest_prompt(options.answer_limit, at_most=options.seq_len),
            pad=interface.padding,
        )

    def answers_work(self, model: nn.Module) -> Iterator[Any]:
        """Yield the steps of `answers`, with answers of the greatest length."""
        from shoestring_recipes.finetune.answering import simulate_answers
        from shoestring_recipes.finetune.prediction import ANSWERED_AT_ONCE

        renderer, options = self._renderer(), self.options
        longest = self._interface_of_model().longest_prompt(options.answer_limit, at_most=options.seq_len)
        lengths = [len(question.tokens(renderer)) for question in self._questions()]
        return simulate_answers(
            model,
            [length for length in lengths if longest is None or length <= longest],
            max_tokens=options.answer_limit,
            size=ANSWERED_AT_ONCE,
        )

    def _questions(self) -> Any:
        from shoestring_recipes.finetune.prediction import held_out_questions, read_prompts

        if self.options.prompts is not None:
            return read_prompts(self.options.prompts)
        return held_out_questions(self._read().validation.rows)

    def converse(self, model: nn.Module, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the answer to a conversation as it is generated."""
        from shoestring_recipes.finetune.generation import stream

        renderer = self._renderer()
        return stream(
            model,
            renderer.prompt(messages),
            stop_tokens=renderer.stop_tokens,
            max_tokens=self.options.answer_tokens or CONVERSATION_TOKENS,
            decode=renderer.decode,
        )

    @property
    def exports(self) -> dict[str, Format]:
        """The adapter, the merged weights, and a GGUF file."""
        from shoestring_recipes.finetune.export_formats import formats

        options = self.options
        return formats(
            adapted=True,
            tokenizer=lambda: self._interface_of_model().tokenizer,
            source=options.model,
            is_enlarged=options.enlarge_vocabulary,
            gguf_type=options.gguf_type,
        )

    def save_preprocessing(self, folder: Path) -> None:
        """Write the tokenizer with its chat template, and the configuration of the model."""
        from shoestring_recipes.finetune.interface import save_interface

        save_interface(self._interface_of_model(), folder)

    def load_preprocessing(self, folder: Path) -> None:
        """Use the tokenizer, the template and the configuration of the run."""
        require(EXTRA, "transformers", "peft")
        from shoestring_recipes.finetune.interface import load_interface

        self._interface, self._built_renderer, self._data = load_interface(folder), None, None

    def notes(self) -> list[str]:
        """Return sentences about the data and the weights."""
        notes = list(self._data.notes) if self._data else []
        if self.options.model is None:
            return [*notes, "the model is small and its weights are random, because model is not set"]
        if isinstance(self.options.model, Path) and self.options.model.is_file():
            return notes
        from shoestring.integrations.huggingface.pretrained import weights_notes

        return [*weights_notes("model", self.options.model, download=self.options.download), *notes]

    def _read(self) -> Data:
        """Return the data, which is read once."""
        if self._data is None:
            require(EXTRA, "transformers")
            from shoestring_recipes.finetune.loading import load_data

            self._data = load_data(self.options, self._renderer, self._interface_of_model)
        return self._data

    def _interface_of_model(self) -> Interface:
        """Return the tokenizer and configuration of the model, which are read once."""
        if self._interface is None:
            require(EXTRA, "transformers")
            from shoestring_recipes.finetune.interface import read_interface

            self._interface = read_interface(self.options)
        return self._interface

    def _renderer(self) -> Renderer:
        if self._built_renderer is None:
            from shoestring_recipes.finetune.interface import build_renderer

            self._built_renderer = build_renderer(self._interface_of_model(), self.options)
        return self._built_renderer
