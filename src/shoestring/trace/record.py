"""The record of one training update on a pretend GPU: what the estimates are computed from. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from shoestring.settings import Precision

Part = Literal[
    "weights",
    "buffers",
    "gradients",
    "optimizer states",
    "batch",
    "activations",
    "reserve space",
    "KV cache",
    "gradient buckets",
    "gathered weights",
    "all-gather buffers",
    "reduce-scatter buffers",
    "temporaries",
]
"""What a storage is for. Activations are what forward made and backward still finds (autocast's copies of weights
among them); reserve space is the same of a fused recurrent layer, whose size is a model; the KV cache is what a rollout
keeps from one step to the next; buckets, gathered weights and buffers are those of several GPUs (`trace/sharding.py`);
temporaries are the rest."""

PhaseName = Literal["model", "generation", "forward", "backward", "optimizer", "end"]

PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recipe is, whatever the settings."""

    parameters_total: int
    parameters_trainable: int
    weight_bytes: int
    """Bytes of the `state_dict`'s tensors, tied ones once."""
    frozen_bytes: int = 0
    """Of them, those of weights that are not trained."""
    rounded_bytes: int = 0
    """Of them, what parameters of 2 bytes would save."""
    batch_norm: bool
    """Some BatchNorm layer trains on its batch's own statistics, so the microbatch is part of what is learnt."""
    samples: Mapping[str, int] | None
    """Samples in each part of the data; None when the recipe has no `data()`."""
    process_bytes: int
    """Resident bytes of a process that has the recipe's data and all of torch that training imports, but no model."""
    blocks: int = 0
    """How many blocks activation checkpointing may compute again."""
    data_parallel: bool = False
    """Some module is a `torch.nn.DataParallel`."""
    lengths: tuple[float, float] | None = None
    """Of training samples the mean and the longest, as the recipe's `length` has them; None where it has none."""
    notes: tuple[str, ...] = ()
    """What the recipe says of its data and its model."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        return cls(**{**values, "notes": tuple(values.get("notes", ()))})

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of device memory: the bytes asked for, before any allocator rounds them."""

    bytes: int
    part: Part


@dataclass(frozen=True, slots=True)
class Alloc:
    """The storage with this index in `Trace.storages` begins to live."""

    storage: int


@dataclass(frozen=True, slots=True)
class Free:
    """The storage with this index is no longer referenced."""

    storage: int


@dataclass(frozen=True, slots=True)
class Op:
    """An operator that does work on the device."""

    name: str
    flops: int
    bytes: int
    """Read and written, were every operand moved once."""
    precision: Precision
    """Of the arithmetic: the narrowest floating type among the operands."""
    launches: int = 1
    """Kernels one after another that it takes; many only where a recurrent layer steps through time."""
    calls: int = 1
    """Operators that the host called for it, itself and those without work since the last (views)."""
    shape: tuple[int, ...] = ()
    """Of a matrix product how many, rows, columns and depth, as `trace/products.py` has them; empty for all else."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What follows belongs to this phase. Update 0 is the first, which makes the optimizer's states; 1 is measured."""

    name: PhaseName
    update: int
    microbatch: int


Event: TypeAlias = Alloc | Free | Op | Phase

_KINDS: tuple[type[Alloc | Free | Op | Phase], ...] = (Alloc, Free, Op, Phase)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Two updates of a recipe in order: everything that began or ceased to live, and every operator."""

    micro_batch: int
    microbatches: int
    """Microbatches in the measured update: at most two, since all later ones repeat the second."""
    precision: Precision
    facts: Facts
    first_batches: tuple[tuple[float, float], ...] = ()
    """How much smaller than the traced one the first batch may be: shares of it, each with how likely it is."""
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]

    def json(self) -> dict[str, Any]:
        """Compact: operators and phases by number, every event a short list."""
        names = dict.fromkeys(event.name for event in self.events if isinstance(event, Op))
        numbers = {name: number for number, name in enumerate(names)}
        return {
            "micro_batch": self.micro_batch,
            "microbatches": self.microbatches,
            "precision": self.precision,
            "facts": self.facts.json(),
            "first_batches": self.first_batches,
            "names": list(names),
            "storages": [[storage.bytes, PARTS.index(storage.part)] for storage in self.storages],
            "events": list(_rows(self.events, numbers)),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trace:
        names = values["names"]
        events = []
        for number, *row in values["events"]:
            kind = _KINDS[number]
            if kind is Op:
                row[0], row[-1] = names[row[0]], tuple(row[-1])
            events.append(kind(*row))
        return cls(
            micro_batch=values["micro_batch"],
            microbatches=values["microbatches"],
            precision=values["precision"],
            facts=Facts.from_json(values["facts"]),
            first_batches=tuple((share, likely) for share, likely in values["first_batches"]),
            storages=tuple(Storage(size, PARTS[part]) for size, part in values["storages"]),
            events=tuple(events),
        )


def _rows(events: tuple[Event, ...], numbers: Mapping[str, int]) -> Iterator[list[Any]]:
    for event in events:
        match event:
            case Alloc(storage):
                yield [0, storage]
            case Free(storage):
                yield [1, storage]
            case Op(name, flops, size, precision, launches, calls, shape):
                yield [2, numbers[name], flops, size, precision, launches, calls, shape]
            case Phase(name, update, microbatch):
                yield [3, name, update, microbatch]
