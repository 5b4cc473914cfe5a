"""The `temporal` recipe: predict whether a price rises, falls or stays about the same over the next bars.

The networks are an LSTM, a Transformer, an MLP, and an ensemble of all three with learned weights, over 29 features of
OHLCV bars in three timeframes. Inputs come from the present bar and the past alone, and every part of the data is later
than the one before. The baseline always predicts the most frequent class, so `evaluate` reports the metrics of both.

The models need torch alone; data and metrics need `pip install -e '.[temporal]'`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import require
from shoestring.recipe.evaluating import EvaluatesBatches
from shoestring.recipe.option_notes import Cheaper, SelectsNewInputs
from shoestring_recipes.folds import is_fold
from shoestring_recipes.rows import OnBadRows
from shoestring_recipes.temporal import split
from shoestring_recipes.temporal.architectures import (
    ALL,
    ARCHITECTURES,
    MEMBERS,
    WEIGHT_DECAY,
    Sizes,
    build_network,
    parameter_groups,
    size_problems,
)
from shoestring_recipes.temporal.exported import TIMEFRAMES
from shoestring_recipes.temporal.features import FEATURES

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipe.exports import OnnxGraph
    from shoestring_recipes.temporal.alternatives import Alternatives
    from shoestring_recipes.temporal.dataset import LabeledBars
    from shoestring_recipes.temporal.ensemble import Ensemble
    from shoestring_recipes.temporal.prediction import BarInputs
    from shoestring_recipes.temporal.preprocessing import Preprocessing
    from shoestring_recipes.temporal.windows import Batch, Samples, Windows

RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("patience", "seq_len", "horizon"), "at least 1", lambda value: value >= 1),
    (("warmup_epochs", "threshold"), "at least 0", lambda value: value >= 0),
    (("dropout", "label_smoothing"), "at least 0 and less than 1", lambda value: 0 <= value < 1),
    (("learning_rate",), "more than 0", lambda value: value > 0),
    (("timeframe",), f"one of {', '.join(TIMEFRAMES)}", lambda value: value in TIMEFRAMES),
    (("fold",), "like 3/5, the third of five", is_fold),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the recipe."""

    size: Annotated[Literal["full", "tiny"], "the published size, or a few thousand parameters for experiments"] = (
        "full"
    )
    architecture: Annotated[
        Literal["lstm", "transformer", "mlp", "ensemble", "all"],
        "the network; mlp reads the last bar only; ensemble combines the three with learned weights; all trains the "
        "three one after another and compares them",
    ] = "lstm"
    data: Annotated[
        Path | None,
        "CSV file of OHLCV bars, or folder of MetaTrader's files such as EURUSD_M15.csv and EURUSD_H4.csv; none: 1,047 "
        "real daily bars from matplotlib's sample data",
    ] = None
    timeframe: Annotated[
        str | None, "the bars of a folder that are classified, by MetaTrader's name, such as M15; none: the shortest"
    ] = None
    on_bad_rows: Annotated[OnBadRows, "stop on unusable rows of the CSV file, or skip and count them"] = "refuse"
    epochs: Annotated[int, "passes over the training data; with architecture=all of each network"] = 50
    effective_batch: Annotated[int, "samples in one update"] = 256
    seed: Annotated[int, "seed of the initialization, sample order and dropout"] = 42
    learning_rate: Annotated[float | None, "peak learning rate; none: lstm 5e-4, transformer 3e-4, mlp 1e-3"] = None
    dropout: Annotated[float | None, "dropout rate; none: lstm 0.4, transformer 0.2, mlp 0.3"] = None
    hidden_dim: Annotated[
        int | None, "width of the lstm and of the transformer (its d_model); none: 128 (tiny: 8 and 16)"
    ] = None
    layers: Annotated[int | None, "layers of the lstm and of the transformer; none: 2 and 3"] = None
    heads: Annotated[int | None, "attention heads of the transformer; none: 8 (tiny: 2)"] = None
    widths: Annotated[str | None, "widths of the mlp's layers; none: 128,96,64,32 (tiny: 32,16,16,8)"] = None
    patience: Annotated[
        int, "stop after this many epochs without a better validation loss; architecture=all trains all epochs"
    ] = 15
    seq_len: Annotated[int, "bars in one sample", Cheaper("shorter sequences")] = 20
    horizon: Annotated[int, "number of bars ahead at which the close is compared"] = 8
    threshold: Annotated[float, "relative change of the close beyond which the class is up or down, else flat"] = 0.006
    label_smoothing: Annotated[float, "share of each label that is spread evenly over all classes"] = 0.1
    warmup_epochs: Annotated[int, "epochs of linear warmup of the learning rate"] = 5
    bars: Annotated[
        Literal["all", "latest"],
        "the bars to predict: all that have a full history, or the latest of each symbol",
        SelectsNewInputs("latest"),
    ] = "all"
    fold: Annotated[str | None, "3/5: the third of five expanding walk-forward folds; none: 70/15/15 % by time"] = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value}: must be {rule}"
            for names, rule, is_valid in RULES
            for name in names
            if (value := getattr(self, name)) is not None and not is_valid(value)
        ]
        problems += size_problems(self.architecture, self.size, self.sizes)
        if problems:
            raise UsageError("options of temporal cannot be used", problems=problems)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the network that are set."""
        return Sizes(**{field.name: getattr(self, field.name) for field in fields(Sizes)})


class Temporal(EvaluatesBatches):
    """Three-class classification of the return over the next bars."""

    best = ("loss", "min")
    held_out_part = "test"
    prediction_options = ("bars",)
    row = "a bar"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._data_notes: list[str] = []
        self._loaded: Preprocessing | None = None
        self._preprocessing: Preprocessing | None = None
        if self.options.architecture == ALL:
            self.phases, self.stages = len(MEMBERS), tuple(MEMBERS)
            self.stage, self.compare = self._stage, self._compare

    @property
    def part_shares(self) -> dict[str, float]:
        return dict(zip(split.PARTS, split.shares(self.options.fold), strict=True))

    def model(self) -> nn.Module:
        options = self.options
        return build_network(options.architecture, options.size, options.sizes, seq_len=options.seq_len)

    def batch(self, size: int) -> Batch:
        """Return features (size, seq_len, 29) float32 and classes (size,) int64; all samples have the same length."""
        import torch

        return torch.zeros(size, self.options.seq_len, len(FEATURES)), torch.zeros(size, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: Batch, stage: str | None = None) -> Tensor:
        """Return the mean cross-entropy with label smoothing, with `architecture=all` that of the network `stage`."""
        inputs, labels = batch
        network = model if stage is None else cast("Alternatives", model).train_member(stage)
        return self._cross_entropy(network(inputs), labels, "mean")

    def data(self) -> dict[str, Windows]:
        """Return the datasets `train`, `validation` and `test`, in order of time, with the shares of `split.shares`.

        Raises UsageError if the extra is not installed, DataError for unusable bars.
        """
        # torchmetrics is required here too, so that a missing package is reported before the first epoch.
        require("temporal", "pandas", "torchmetrics")
        bars = self._load_bars()
        parts, self._preprocessing = bars.parts, bars.preprocessing
        self._data_notes = bars.notes(parts)
        return parts

    def whole(self) -> Windows:
        """Return all samples of the data as one dataset, also those across the borders of parts."""
        require("temporal", "pandas")
        bars = self._load_bars()
        whole, self._preprocessing = bars.whole, bars.preprocessing
        self._data_notes = bars.notes({"all": whole})
        return whole

    def save_preprocessing(self, folder: Path) -> None:
        """Write the timeframes, and mean and deviation of each feature in the training part."""
        from shoestring_recipes.temporal import preprocessing

        preprocessing.save(self._preprocessing or self._load_bars().preprocessing, folder)

    def load_preprocessing(self, folder: Path) -> None:
        """Use the timeframes and the scaler of the data that the model was trained on, instead of fitting them."""
        from shoestring_recipes.temporal import preprocessing

        self._loaded = self._preprocessing = preprocessing.load(folder)

    def inputs(self, source: Path | Sequence[Any] | None) -> BarInputs:
        """Return one input for each bar with a full history, and one with an error for each unusable row.

        `source` is a CSV file of bars, a folder of such files, a list of rows as mappings, or None for the sample bars.
        The identifier of an input is the position of its row, from 0; the files of a folder follow one another by
        symbol, then time.

        Raises UsageError if nothing was fitted or loaded before.
        """
        require("temporal", "pandas")
        from shoestring_recipes.temporal.prediction import BarInputs, read_source

        if self._preprocessing is None:
            raise UsageError(
                "the scaler of the training data is not known: predictions on features of another scale would be wrong",
                hint="use a run that has stored its preprocessing, or put its folder preprocessing beside the weights",
            )
        options = self.options
        inputs = BarInputs(
            read_source(
                source,
                self._preprocessing.timeframes,
                timeframe=options.timeframe,
                on_bad_rows=options.on_bad_rows,
            ),
            self._preprocessing,
            options.seq_len,
            bars=options.bars,
            skip=options.on_bad_rows == "skip",
        )
        self._data_notes = inputs.notes()
        return inputs

    def predict(self, model: nn.Module, batch: Samples) -> list[Any]:
        """Return the class of each sample, the probabilities of all classes, and the weights of an ensemble.

        With `architecture=all` the name of the network in use as well.
        """
        from shoestring_recipes.temporal.prediction import predict
        from shoestring_recipes.temporal.windows import CLASSES

        features = batch[0]
        is_ensemble = self.options.architecture == "ensemble"
        weights = cast("Ensemble", model).log_weights(features).exp() if is_ensemble else None
        predictions = predict(model(features), weights, CLASSES, [*MEMBERS])
        if self.options.architecture == ALL:
            name = cast("Alternatives", model).name
            predictions = [{**prediction, "architecture": name} for prediction in predictions]
        return predictions

    def targets(self, batch: Batch) -> list[str]:
        """Return the true class of each sample."""
        from shoestring_recipes.temporal.windows import CLASSES

        return [CLASSES[number] for number in batch[1].tolist()]

    def identify(self, dataset: Windows, index: int) -> int:
        """Return the position in the file of the last bar of a sample, which is also its identifier as an input."""
        return dataset.position(index)

    def describe(self, dataset: Windows, index: int) -> dict[str, str]:
        return dataset.describe(index)

    def notes(self) -> list[str]:
        """Return sentences about the data, its number of samples and skipped rows."""
        return list(self._data_notes)

    def collate(self, samples: Samples | list[Samples]) -> Samples:
        from shoestring_recipes.temporal.windows import collate

        return collate(samples)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        learning_rate = self.options.learning_rate
        if learning_rate is not None:
            return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY)
        return torch.optim.AdamW(parameter_groups(self.options.architecture, model), weight_decay=WEIGHT_DECAY)

    def schedule(self, update: int, updates_per_epoch: int, total_updates: int) -> float:
        """Return a factor with linear warmup, for at most half of the run, then cosine decay to almost 0.

        With `architecture=all` each network has this schedule.
        """
        if self.options.architecture == ALL:
            from shoestring_recipes.temporal.alternatives import phase_at

            _, update, total_updates = phase_at(update, updates_per_epoch, total_updates, len(MEMBERS))
        warmup = min(self.options.warmup_epochs * updates_per_epoch, total_updates // 2)
        if update < warmup:
            return (update + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, total_updates - warmup)))

    @property
    def patience(self) -> int | None:
        return None if self.options.architecture == ALL else self.options.patience

    @property
    def clip_norm(self) -> float | dict[str, float]:
        if self.options.architecture == ALL:
            return {name: member.clip_norm for name, member in MEMBERS.items()}
        return ARCHITECTURES[self.options.architecture].clip_norm

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> Any:
        """Return the sum of losses, the predicted and the true classes, and two facts.

        They are the weights of an ensemble's members and, with `architecture=all`, the number of the network in use.
        """
        inputs, truth = batch
        logits = model(inputs)
        is_ensemble = self.options.architecture == "ensemble"
        weights = cast("Ensemble", model).log_weights(inputs).exp() if is_ensemble else None
        current = cast("Alternatives", model).current if self.options.architecture == ALL else None
        return self._cross_entropy(logits, truth, "sum").double(), logits.argmax(dim=-1), truth, weights, current

    def combine(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return `loss`, `accuracy` and `macro_f1`, and both metrics of always predicting the most frequent class.

        `accuracy_error` and `macro_f1_error` are standard errors that account for the overlap of neighbouring labels.
        `classes` has the true and the predicted count of each class; `weights`, for an ensemble, the mean weight of
        each member; `architecture`, with `architecture=all`, the name of the network.
        """
        require("temporal", "pandas", "torchmetrics")
        import torch

        from shoestring_recipes.temporal.metrics import scores

        losses, predicted, labels, weights, current = zip(*results, strict=True)
        truths = torch.cat(labels)
        loss = float(torch.stack(losses).sum()) / len(truths)
        return {
            "loss": loss,
            **scores(torch.cat(predicted), truths, self.options.horizon),
            **(
                {"weights": dict(zip(MEMBERS, torch.cat(weights).mean(dim=0).tolist(), strict=True))}
                if self.options.architecture == "ensemble"
                else {}
            ),
            **({"architecture": [*MEMBERS][int(current[0])]} if self.options.architecture == ALL else {}),
        }

    def onnx(self, model: nn.Module) -> OnnxGraph:
        from shoestring_recipes.temporal.export import graph

        return graph(cast("Alternatives", model).member if self.options.architecture == ALL else model)

    def _stage(self, update: int, updates_per_epoch: int, total_updates: int) -> str:
        from shoestring_recipes.temporal.alternatives import phase_at

        return self.stages[phase_at(update, updates_per_epoch, total_updates, len(self.stages))[0]]

    def _compare(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        from shoestring_recipes.temporal.alternatives import best_by_architecture

        return best_by_architecture(history)

    def _load_bars(self) -> LabeledBars:
        from shoestring_recipes.temporal.dataset import Sampling, load_bars

        options = self.options
        sampling = Sampling(
            seq_len=options.seq_len,
            horizon=options.horizon,
            threshold=options.threshold,
            fold=options.fold,
            on_bad_rows=options.on_bad_rows,
            preprocessing=self._loaded,
            timeframe=options.timeframe,
        )
        return load_bars(options.data, sampling)

    def _cross_entropy(self, logits: Tensor, labels: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, label_smoothing=self.options.label_smoothing, reduction=reduction)
