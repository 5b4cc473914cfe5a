"""What a recipe may have for its data: the datasets, their batches and lengths, and what plans need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Data:
    """The optional parts of a recipe that provide its samples, and describe them for plans and people."""

    data: Callable[[], Any] | None = None
    """`data()` -> a map-style dataset (`len` and `[index]`; `__getitems__(indices)` if fetching a whole batch is
    cheaper), or a dict of datasets: `train`, and optionally `validation` and `test`. Training needs it. A small dataset
    with `__getitems__`, `nbytes` and `to(device)`, which returns the same samples on the device, is moved to the GPU.
    For data that can only be read sequentially, in pieces with known sample counts, use `shoestring.pieces.Shards`; see
    docs/guides/data.md."""
    has_placeholder_data: bool = False
    """Whether the samples of `data()` have sizes, but no content: they are planned, not trained."""
    data_hint: str = ""
    """The hint of the error that there is nothing to train on, without `data` or with placeholder data."""
    data_options: Sequence[str] = ()
    """The names of options that are paths which belong to those in `data`. A prediction for other data has their
    defaults in place of paths of the run that are not on this machine."""

    collate: Callable[[Any], Any] | None = None
    """`collate(samples)` -> a batch; by default `torch.utils.data.default_collate`; for sequences of different lengths
    `shoestring.pieces.pad_batch(samples, value)`. Draw random numbers in `[index]` or in `collate`: there they are the
    same in every process that fetches."""
    label: Callable[[Any, int], Any] | None = None
    """`label(dataset, index)` -> the label of a sample; a subset of the training data and the folds of a
    cross-validation preserve the labels' shares."""
    group: Callable[[Any, int], Any] | None = None
    """`group(dataset, index)` -> what a sample belongs to, such as its patient: a fold has all samples of a group or
    none."""
    unaugmented: Callable[[Any], Any] | None = None
    """`unaugmented(dataset)` -> the samples of the training dataset, at the same indices, as they are evaluated:
    without random changes. The samples of a fold (the option `fold`) are then evaluated so; by default as in training.
    """
    held_out_part: str = "validation"
    """The part of `data()` with the samples that a fold holds out, for the out-of-fold predictions: `test` in a recipe
    that divides its data itself and needs its validation part to choose the best weights."""

    length: Callable[[Any, int], float] | None = None
    """`length(dataset, index)` -> the length of a sample, without reading it: an update's samples of similar length
    share a microbatch. The samples of an update do not change."""
    capacity: float | None = None
    """The length of a sample of `batch(size)`. With it and `length`, a plan counts the padding of this data rather than
    samples of the largest length."""
    length_option: str | None = None
    """The name of the option that is the `capacity`. A plan then traces a shorter batch as well, to know the time of
    shorter samples; by default their time is in proportion to their length."""
    has_synthetic_lengths: bool = False
    """Whether `data()` makes its samples up, so that their lengths tell nothing of the memory of real ones."""
    length_unit: str = "tokens"
    """What lengths count."""
    length_source: Callable[[], str] | None = None
    """`length_source()` -> a text that identifies what else the lengths depend on, such as the tokenizer: with another
    one they differ."""
    packed_batch: Callable[[int], Any] | None = None
    """`packed_batch(size)` -> like `batch`, the largest batch of `size` rows into which samples of in total at most
    `capacity` are packed (`packing=yes`). `collate` then gets lists of samples, one for each row."""

    row: str = "a sample"
    """What a row of the data is ("a judgment"), for plans of data that are not here (the option `rows`)."""
    samples_per_row: float = 1.0
    """How many samples a row has, for such plans."""
    part_shares: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    """The share of the rows in each part, for such plans."""
    rows_read: Callable[[], int] | None = None
    """`rows_read()` -> the number of rows that `data` has read; by default that of the samples."""
    count_rows: Callable[[Mapping[str, int]], int | None] | None = None
    """`count_rows(files)` -> the number of rows of data with these files, a mapping from their paths relative to the
    option `data` (or the name of the file that it is) to their bytes; None if these do not tell. A recipe without it
    cannot tell, and `shoestring kaggle start` asks for `rows`."""

    notes: Callable[[], Iterable[str]] = list
    """`notes()` -> full sentences about the data and the model for the user: skipped rows, synthetic data, random
    weights. Called after `data()` and `model()`."""
    preview: Callable[[], str] | None = None
    """`preview()` -> text for people: what a sample of the training data is to the model, which `check` prints."""
    describe: Callable[[Any, int], Any] | None = None
    """`describe(dataset, index)` -> a sample for people, as JSON, in the answer of `replay`; by default its identifier,
    and the shapes and the first values of its tensors."""
