"""`vqa`: a small student learns to answer questions about images, with reasons, from the texts of a large teacher.

The features of a vision transformer and a Vietnamese text encoder are fused into one vector, from which a T5 generates
the text. The student is trained on three texts for each image: the whole text with its tags, the answer, and the
reasoning. Their weights in the loss change in stages over the run. Needs `pip install -e '.[vqa]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoestring.base.packages.requirements import require
from shoestring.recipe import evidence
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring.recipe.generation import Step
from shoestring.recipe.inputs import Input
from shoestring_recipes.vqa import curriculum
from shoestring_recipes.vqa.options import Options
from shoestring_recipes.vqa.samples import HELD_OUT
from shoestring_recipes.vqa.texts import BEGIN

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import Exported, Format
    from shoestring_recipes.vqa.dataset import Dataset
    from shoestring_recipes.vqa.parts import Source
    from shoestring_recipes.vqa.samples import Sample
    from shoestring_recipes.vqa.student import Batch, Student
    from shoestring_recipes.vqa.tokens import Tokenizer

WEIGHT_DECAY = 0.01
LEARNING_RATES = {"full": 1e-5, "tiny": 5e-3}
LENGTHS = {"full": (64, 160), "tiny": (32, 48)}
"""Maximum number of tokens of a question and of a target text, by size."""


class VQA(EvaluatesBatches):
    """A student that learns to answer questions about images, with reasons, from a teacher's texts."""

    best = ("token_f1", "max")
    clip_norm = 1.0
    row = "a question about an image"
    data_options = ("images",)
    length_option = "a_len"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._data_notes: list[str] = []
        self._preprocessing: Path | None = None
        self._tokenizers: dict[str, Tokenizer] = {}

    @property
    def has_synthetic_lengths(self) -> bool:
        return self.options.data is None

    @property
    def capacity(self) -> float:
        """The most tokens of a whole text."""
        return self._lengths[1]

    def length_source(self) -> str:
        return f"the tokens of {self.options.writer_from or 'the own vocabulary'}"

    @property
    def part_shares(self) -> dict[str, float]:
        if self.options.split == "no":
            return {"train": 1.0}
        return {"train": 1 - 2 * HELD_OUT, "validation": HELD_OUT, "test": HELD_OUT}

    def model(self) -> nn.Module:
        """Build the student.

        Raises UsageError where the extra is not installed, or pretrained weights are incomplete.
        """
        return self._build_student(self._make_source(stored=False))

    def skeleton(self) -> nn.Module:
        """Build the student without pretrained weights. Raises UsageError where the extra is not installed."""
        return self._build_student(replace(self._source, has_weights=False))

    def _build_student(self, source: Source) -> nn.Module:
        from shoestring_recipes.vqa.attention import fuse_attention

        student = source.build_student()
        if self.options.forwards == "shared":
            fuse_attention(student.vision)
        return student

    def pretrained(self, path: Path) -> nn.Module:
        """Return the student with the weights at `path`: its own, or the guide's."""
        from shoestring_recipes.vqa.published_weights import load_student

        model, options = self.model(), self.options
        load_student(path, model, has_tokenizers=bool(options.text_from and options.writer_from))
        return model

    def blocks(self, model: Student) -> list[nn.Module]:
        """Return the blocks to checkpoint, the decoder's first: the published system recomputes those."""
        return model.blocks()

    def batch(self, size: int) -> Batch:
        """Return a batch with texts of maximum length, rounded up to a multiple of 8 like real batches."""
        import torch

        from shoestring_recipes.vqa.student import Batch

        pixels = self._source.load_configuration("vision").image_size
        q_len, a_len = (-(-length // 8) * 8 for length in self._lengths)
        questions = torch.ones(size, q_len, dtype=torch.int64)
        mask = questions.clone()
        # Real batches are padded, and attention without any padding would use another kernel.
        mask[0, -1] = 0
        whole, answer, reasoning = (torch.ones(size, a_len, dtype=torch.int64) for _ in range(3))
        return Batch(
            images=torch.zeros(size, 3, pixels, pixels),
            questions=questions,
            mask=mask,
            whole=whole,
            answer=answer,
            reasoning=reasoning,
            weights=torch.ones(size),
            samples=[],
        )

    def stage(self, update: int, updates_per_epoch: int, total_updates: int) -> curriculum.Stage:
        """Return the weights of the three texts in an update."""
        return curriculum.stage_at(update // updates_per_epoch, total_updates / updates_per_epoch)

    def loss(self, model: Student, batch: Batch, stage: curriculum.Stage = curriculum.ANSWER_FOCUS) -> Tensor:
        """Return the weighted sum of the losses of the three texts, each a mean over samples of a mean over tokens.

        Samples have equal weights, so that an update does not depend on how it is split; only the weight of a reasoning
        depends on its kind.
        """
        from shoestring_recipes.vqa.student import mean_over_tokens

        if self.options.forwards == "guide":
            whole, answer, reasoning = (
                model.cross_entropy(model.encode(batch.images, batch.questions, batch.mask), text)
                for text in (batch.whole, batch.answer, batch.reasoning)
            )
        else:
            context = model.encode(batch.images, batch.questions, batch.mask)
            tokens = model.token_losses(context, batch.whole)
            whole = mean_over_tokens(tokens, batch.whole)
            # The decoder is causal, so later tokens do not change the losses of the beginning.
            answer = mean_over_tokens(tokens[:, : batch.answer.shape[1]], batch.answer)
            reasoning = model.cross_entropy(context, batch.reasoning)
        weighted = stage.format * whole + stage.answer * answer + stage.reasoning * reasoning * batch.weights
        return weighted.mean()

    def data(self) -> dict[str, Dataset]:
        """Return the parts `train`, `validation` and `test` without common images, or only `train` with `split=no`.

        Raises UsageError where the extra is not installed, DataError for data that cannot be trained on.
        """
        from shoestring_recipes.vqa import samples

        all_samples, load_image = self._load_samples()
        parts = samples.split(all_samples) if self.options.split == "by_image" else {"train": all_samples}
        return self._build_datasets(parts, load_image)

    def whole(self) -> Dataset:
        """Return all samples as one dataset, in the order of the file. Raises as `data` does."""
        all_samples, load_image = self._load_samples()
        return self._build_datasets({"train": all_samples}, load_image)["train"]

    def _load_samples(self) -> tuple[list[Sample], Callable[[Sample], Image]]:
        """Return all samples in order, and the function that loads their images."""
        require("vqa", "transformers", "sklearn")
        from shoestring_recipes.rows import BadRows
        from shoestring_recipes.vqa import digits, teacher

        options = self.options
        if options.data is None:
            self._data_notes = [digits.NOTE]
            return digits.make_samples(), digits.load_image
        bad_rows = BadRows(options.on_bad_rows)
        all_samples = teacher.read(
            options.data, options.images, bad_rows, takes_incomplete=options.incomplete_rows == "neutral"
        )
        self._data_notes = bad_rows.notes
        return all_samples, teacher.load_image

    def _build_datasets(
        self, parts: dict[str, list[Sample]], load_image: Callable[[Sample], Image]
    ) -> dict[str, Dataset]:
        from shoestring_recipes.vqa import dataset

        q_len, a_len = self._lengths
        encode = partial(
            dataset.encode,
            question_tokenizer=self._load_tokenizer("text"),
            text_tokenizer=self._load_tokenizer("writer"),
            q_len=q_len,
            a_len=a_len,
        )
        encoded = {name: [encode(sample) for sample in part] for name, part in parts.items()}
        truncated = sum(sample.is_truncated for part in encoded.values() for sample in part)
        if truncated:
            share = f"{truncated:,} of {sum(map(len, parts.values())):,} samples"
            reason = f"because they are longer than q_len={q_len} or a_len={a_len}"
            self._data_notes = [*self._data_notes, f"{share} are truncated, {reason}"]
        return {
            name: dataset.Dataset(
                part,
                encoded[name],
                load_image,
                side=self._source.load_configuration("vision").image_size,
                mean_weight=dataset.mean_weight(parts["train"]),
            )
            for name, part in parts.items()
        }

    def random_parts(self) -> tuple[str, ...]:
        """Return the parts whose weights are not pretrained."""
        return () if self._preprocessing else self._source.random_parts

    def notes(self) -> list[str]:
        return [*self._data_notes, *([] if self._preprocessing else self._source.notes())]

    def collate(self, samples: list[tuple[object, ...]]) -> Batch:
        from shoestring_recipes.vqa import dataset

        return dataset.collate(samples, padding=self._load_tokenizer("text").pad)

    def length(self, dataset: Dataset, index: int) -> int:
        return dataset.length(index)

    def describe(self, dataset: Dataset, index: int) -> dict[str, str]:
        return dataset.describe(index)

    def label(self, dataset: Dataset, index: int) -> str:
        return dataset.kind(index)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=self._peak, weight_decay=WEIGHT_DECAY)

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:
        """Return the factor of the learning rate: a cosine with warm restarts."""
        return curriculum.rate_factor(update / updates_per_epoch, total_updates / updates_per_epoch, self._peak)

    @property
    def patience(self) -> int:
        return self.options.patience

    def evaluate_batch(self, model: Student, batch: Batch) -> Any:
        """Return the sum of the losses of the whole texts, the generated texts and the fields of the samples."""
        context = model.encode(batch.images, batch.questions, batch.mask)
        loss = model.cross_entropy(context, batch.whole).double().sum()
        return loss, self._generate(model, context), [vars(sample) for sample in batch.samples]

    def combine(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return `metrics.compute_scores` of the generated texts, the `loss` of the whole text in any stage, and
        examples of the texts.
        """
        from shoestring_recipes.vqa.metrics import compute_scores, find_examples
        from shoestring_recipes.vqa.samples import Sample

        texts = [text for _, generated, _ in results for text in generated]
        samples = [Sample(**fields) for _, _, rows in results for fields in rows]
        return {
            "loss": sum(float(loss) for loss, _, _ in results) / len(samples),
            **compute_scores(texts, samples),
            evidence.KEY: {"examples": find_examples(texts, samples)},
        }

    def illustrate(self, model: Student, dataset: Dataset, index: int) -> dict[str, bytes]:  # noqa: ARG002
        """Return the image of a sample."""
        return {"image": dataset.thumbnail(index)}

    def inputs(self, source: Any) -> Iterator[Input]:
        """Return the questions of `questions.Questions`, or those about the default images.

        Raises DataError if there is no such file, UsageError where the extra is not installed.
        """
        from shoestring_recipes.vqa.questions import Questions

        if source is None:
            samples, load_image = self._load_samples()
            source = ({"id": s.image, "image": load_image(s), "question": s.question} for s in samples)
        questions = Questions(
            images=self.options.images,
            tokenizer=self._load_tokenizer("text"),
            q_len=self._lengths[0],
            side=self._source.load_configuration("vision").image_size,
        )
        return questions.read(source)

    def predict(self, model: Student, batch: Batch) -> list[dict[str, Any]]:
        """Return the answer and the reason to each question, with the generated text."""
        from shoestring_recipes.vqa.texts import parse

        generated = self._generate(model, model.encode(batch.images, batch.questions, batch.mask))
        return [
            {"prediction": text.answer, "reason": text.reasoning, "well_formed": text.well_formed, "text": whole}
            for whole, text in zip(generated, map(parse, generated), strict=True)
        ]

    def targets(self, batch: Batch) -> list[str]:
        return [sample.answer for sample in batch.samples]

    def identify(self, dataset: Dataset, index: int) -> str | int:
        """Return the `id` of a row, else its position from 0 in the file."""
        return dataset.identify(index)

    def evaluation_work(self, model: Student, batch: Batch) -> Iterator[Any]:
        """Yield the steps of `evaluate_batch`: the loss of the whole texts, and those of generating texts."""
        model.cross_entropy(model.encode(batch.images, batch.questions, batch.mask), batch.whole)
        yield Step(())
        yield from self.inference(model, batch)

    def inference(self, model: Student, batch: Batch) -> Iterator[Any]:
        from shoestring_recipes.vqa.beams import simulate_beam_search

        beginning, max_length = self._load_tokenizer("writer").encode(BEGIN), self._lengths[1]
        return simulate_beam_search(model, batch, len(beginning), beams=self.options.beams, max_length=max_length)

    def save_preprocessing(self, folder: Path) -> None:
        self._source.save(folder)

    def load_preprocessing(self, folder: Path) -> None:
        self._preprocessing, self._tokenizers = folder, {}

    def _generate(self, model: Student, context: Tensor) -> list[str]:
        """Return the text of each context; it begins with `BEGIN`."""
        tokenizer = self._load_tokenizer("writer")
        tokens = model.generate(context, tokenizer.encode(BEGIN), beams=self.options.beams, max_length=self._lengths[1])
        return [tokenizer.decode(text) for text in tokens]

    def _load_tokenizer(self, name: Literal["text", "writer"]) -> Tokenizer:
        if name not in self._tokenizers:
            self._tokenizers[name] = self._source.load_tokenizer(name)
        return self._tokenizers[name]

    @property
    def exports(self) -> dict[str, Format]:
        from shoestring.recipe.exports import Format

        return {"huggingface": Format(write=self._write_parts)}

    def _write_parts(self, model: Any, folder: Path, samples: Sequence[Any]) -> Exported:
        from shoestring_recipes.vqa.export import write_parts
        from shoestring_recipes.vqa.parts import FUSION_DROPOUT

        options = self.options
        return write_parts(
            model,
            folder,
            [self.collate(part) for part in samples],
            source=self._source,
            lengths=self._lengths,
            beams=options.beams,
            dropout=FUSION_DROPOUT[options.size],
        )

    @property
    def _source(self) -> Source:
        """The source of configurations and tokenizers, those of the run if they are stored."""
        return self._make_source(stored=self._preprocessing is not None)

    def _make_source(self, *, stored: bool) -> Source:
        require("vqa", "transformers")
        from shoestring_recipes.vqa.parts import PARTS, Source

        options = self.options
        folders = {name: getattr(options, f"{name}_from") for name in PARTS}
        if stored and self._preprocessing:
            folders = {name: str(self._preprocessing / name) if folder else None for name, folder in folders.items()}
        return Source(size=options.size, folders=folders, download=options.download)

    @property
    def _lengths(self) -> tuple[int, int]:
        """Maximum number of tokens of a question and of a target text."""
        q_len, a_len = LENGTHS[self.options.size]
        return self.options.q_len or q_len, self.options.a_len or a_len

    @property
    def _peak(self) -> float:
        return self.options.learning_rate or LEARNING_RATES[self.options.size]
