"""The trace of training updates on a simulated GPU, from which estimates are computed. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from shoestring.base.settings import Precision

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
    "averaged weights",
    "loading copies",
]
"""The use of a storage. Activations are created in forward and still alive when backward starts (including autocast's
copies of weights); reserve space is the equivalent of a fused recurrent layer, with a modeled size; the KV cache holds
what a rollout passes from one step to the next; buckets, gathered weights and all-gather and reduce-scatter buffers
exist only with several GPUs (`planning/trace/simulated_place.py`); loading copies are weights before they have their
final type; temporaries are all others."""

PhaseName = Literal["model", "generation", "forward", "backward", "exchange", "optimizer", "end"]

PARTS: tuple[Part, ...] = get_args(Part)

UPPER_ESTIMATE = "upper estimate"
"""The beginning of a note on a trace that perhaps needs more memory than any update."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Properties of a recipe that do not depend on the settings."""

    parameters_total: int
    """The number of parameters."""
    parameters_trainable: int
    """The number of parameters that are trained."""
    weight_bytes: int
    """Bytes of the tensors in the `state_dict`; tied tensors count once."""
    frozen_bytes: int = 0
    """The part of `weight_bytes` in weights that are not trained."""
    rounded_bytes: int = 0
    """The part of `weight_bytes` that parameters of 2 bytes would save."""
    batch_norm: bool
    """Whether a BatchNorm layer normalizes by the statistics of its microbatch, whose size then affects the training
    result."""
    samples: Mapping[str, int] | None
    """The number of samples in each part of the data; None if the recipe has no `data()`."""
    process_bytes: int
    """Resident bytes of a process that has the recipe's data and all of torch that training imports, but no model."""
    is_pretrained: bool = True
    """Whether the model begins from pretrained weights, which adapters need, or that is not known."""
    random_parts: tuple[str, ...] = ()
    """The parts of the model that begin with random weights in place of pretrained ones, as the recipe tells."""
    blocks: int = 0
    """The number of blocks that activation checkpointing can recompute."""
    fused_optimizer: bool = False
    """Whether the optimizer can update all weights with one kernel on a GPU, and the recipe leaves that open."""
    data_parallel: bool = False
    """Whether a module is a `torch.nn.DataParallel`."""
    lengths: tuple[float, float] | None = None
    """The mean and maximum length of training samples, by the recipe's `length`; None if the recipe has none."""
    sample_lengths: tuple[float, ...] = ()
    """The lengths of at most a thousand training samples, for a recipe that has a `capacity`."""
    export_bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes of an export of the trained model, by its format, as far as the recipe knows them before."""
    notes: tuple[str, ...] = ()
    """The recipe's notes on its data and its model."""
    bounds: tuple[str, ...] = ()
    """Notes on a trace's operators whose output size depends on values: estimates with it are upper ones."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        lengths = tuple(values.get("sample_lengths", ()))
        return cls(
            **{
                **values,
                "sample_lengths": lengths,
                "random_parts": tuple(values.get("random_parts", ())),
                "notes": tuple(values.get("notes", ())),
                "bounds": tuple(values.get("bounds", ())),
            }
        )

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def with_bounds(self, bounds: Iterable[str]) -> Facts:
        """Return the facts with the notes on a trace, which are shown with those of the recipe.

        Those on random numbers are no bounds: an update for which the largest are drawn needs that much memory.
        """
        notes = tuple(bounds)
        upper = tuple(note for note in notes if note.startswith(UPPER_ESTIMATE))
        return replace(self, notes=(*self.notes, *notes), bounds=upper)


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of device memory, with the requested bytes before an allocator rounds them."""

    bytes: int
    part: Part


@dataclass(frozen=True, slots=True)
class Alloc:
    """The storage with this index in `Trace.storages` is allocated."""

    storage: int


@dataclass(frozen=True, slots=True)
class Free:
    """The storage with this index is no longer referenced."""

    storage: int


class Reduction(NamedTuple):
    """What the buffers follow from of a reduction that several blocks of threads may divide among them."""

    bytes: int
    """The bytes of the partial results of one block for each result."""
    blocks: int
    """The blocks of threads that compute all results if each result has one."""
    threads: int
    """The threads of a block."""
    values: int
    """The values that a thread adds up if each result has one block."""


class SplitSum(NamedTuple):
    """What the buffer follows from of sums that are made in as many parts as keep all multiprocessors busy."""

    bytes: int
    """The bytes of one part."""
    parallel: int
    """The blocks of threads that work on one part."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operator that runs kernels on the device."""

    name: str
    flops: int
    bytes: int
    """Bytes read and written if every operand is moved once."""
    precision: Precision
    """The precision of the computation: the narrowest floating type among the operands."""
    launches: int = 1
    """The number of consecutive kernels; large only for recurrent layers, which step through time."""
    calls: int = 1
    """The number of operators that the host called: this one and those without kernels (views) since the previous."""
    shape: tuple[int, ...] = ()
    """The batch size, rows, columns and depth of a matrix product, or a `ConvolutionShape` (`products.shape`); empty
    for other operators."""
    python_calls: int = 0
    """The number of Python functions that the host called since the previous operator with a kernel
    (`planning/trace/python_calls.py`)."""
    buffers: Reduction | SplitSum | None = None
    """Buffers that depend on the number of multiprocessors (`planning/estimate/kernel_buffers.py`)."""
    in_place: bool = False
    """Whether the target writes the result into an operand. The trace has a new storage for it, allocated directly
    before the operator, and the operand is freed directly after it (`planning/estimate/requests.py`)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The start of a phase. Update 0 is the first, which creates the optimizer's states; update 1 is measured."""

    name: PhaseName
    update: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """The operators since the beginning of the phase, or since its previous `Repeat`, run so many times."""

    times: float


class BlockUse(NamedTuple):
    """A call of a block that can be streamed."""

    block: int
    """Its index in `Trace.block_bytes`."""
    start: int
    end: int
    """The number of operators that have run in this forward when the call begins and when it is over."""


Event: TypeAlias = Alloc | Free | Op | Phase | Repeat

BETWEEN_GPUS = "copy between GPUs"
"""The name of an operator that reads tensors of one GPU and writes those of another."""

_KINDS: tuple[type[Alloc | Free | Op | Phase | Repeat], ...] = (Alloc, Free, Op, Phase, Repeat)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Two updates of a recipe: every allocation, free and operator in order."""

    micro_batch: int
    microbatches: int
    """The number of microbatches in the measured update: at most two in each logical shard, since later ones repeat the
    second."""
    stages: int = 1
    """The number of updates that the measured one consists of: one for each stage that the recipe declares."""
    precision: Precision
    facts: Facts
    first_batches: tuple[tuple[float, float], ...] = ()
    """Possible sizes of a smaller first batch, as pairs of a share of the traced batch and its probability."""
    bounds: tuple[str, ...] = ()
    """Notes on operators whose output size depends on values, traced with the largest (`planning/trace/bounds.py`), and
    on random numbers of the host (`planning/trace/draws.py`)."""
    host_bytes: Mapping[Part, int] = field(default_factory=dict)
    """The bytes of offloaded tensors in the memory of the GPU's process, by part. Streamed blocks are not counted."""
    loading_host_bytes: int = 0
    """The most bytes of weights in the memory of the GPU's process while they are loaded, without streamed blocks."""
    block_bytes: tuple[int, ...] = ()
    """The bytes of the frozen weights of each block that can be streamed, whether it is or not."""
    block_uses: tuple[BlockUse, ...] = ()
    """The calls of these blocks in the first forward of the measured update, in order."""
    draws_random: bool = False
    """Whether the model or the loss draws random numbers in an update, as dropout does."""
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    second: Trace | None = None
    """What happens on the second GPU, if the model is divided between two (`sharding=pipeline`)."""

    @property
    def bytes_of_all_blocks(self) -> tuple[int, ...]:
        """`block_bytes` of the whole model, also if it is divided between two GPUs."""
        return (*self.block_bytes, *(self.second.block_bytes if self.second else ()))

    @property
    def counts_steps(self) -> bool:
        """Whether the recipe tells how often the steps of its generation run, so that their time is known."""
        return any(isinstance(event, Repeat) for event in self.events)

    def json(self) -> dict[str, Any]:
        """Return a compact JSON form, with operators by number and every event a short list."""
        names = dict.fromkeys(event.name for event in self.events if isinstance(event, Op))
        numbers = {name: number for number, name in enumerate(names)}
        return {
            "micro_batch": self.micro_batch,
            "microbatches": self.microbatches,
            "stages": self.stages,
            "precision": self.precision,
            "facts": self.facts.json(),
            "first_batches": self.first_batches,
            "bounds": self.bounds,
            "host_bytes": dict(self.host_bytes),
            "loading_host_bytes": self.loading_host_bytes,
            "block_bytes": self.block_bytes,
            "block_uses": self.block_uses,
            "draws_random": self.draws_random,
            "names": list(names),
            "storages": [[storage.bytes, PARTS.index(storage.part)] for storage in self.storages],
            "events": list(_rows(self.events, numbers)),
            **({"second": self.second.json()} if self.second else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trace:
        names = values["names"]
        events = []
        for number, *row in values["events"]:
            kind = _KINDS[number]
            if kind is Op:
                row[0], row[6] = names[row[0]], tuple(row[6])
                if len(row) > _PLAIN_FIELDS:
                    row[_PLAIN_FIELDS] = _buffers(row[_PLAIN_FIELDS])
            events.append(kind(*row))
        return cls(
            micro_batch=values["micro_batch"],
            microbatches=values["microbatches"],
            stages=values["stages"],
            precision=values["precision"],
            facts=Facts.from_json(values["facts"]),
            first_batches=tuple((share, probability) for share, probability in values["first_batches"]),
            bounds=tuple(values.get("bounds", ())),
            host_bytes=values.get("host_bytes", {}),
            loading_host_bytes=values.get("loading_host_bytes", 0),
            block_bytes=tuple(values.get("block_bytes", ())),
            block_uses=tuple(BlockUse(*use) for use in values.get("block_uses", ())),
            draws_random=values.get("draws_random", False),
            storages=tuple(Storage(size, PARTS[part]) for size, part in values["storages"]),
            events=tuple(events),
            second=Trace.from_json(values["second"]) if values.get("second") else None,
        )


_PLAIN_FIELDS = 8
"""The fields of an operator before its buffers, which few have, as are those in place."""


def _buffers(numbers: Sequence[int]) -> Reduction | SplitSum | None:
    if not numbers:
        return None
    return Reduction(*numbers) if len(numbers) == len(Reduction._fields) else SplitSum(*numbers)


def _rows(events: tuple[Event, ...], numbers: Mapping[str, int]) -> Iterator[list[Any]]:
    for event in events:
        match event:
            case Alloc(storage):
                yield [0, storage]
            case Free(storage):
                yield [1, storage]
            case Op(name, flops, size, precision, launches, calls, shape, python_calls, buffers, in_place):
                row = [2, numbers[name], flops, size, precision, launches, calls, shape, python_calls]
                yield [*row, buffers or (), in_place] if buffers or in_place else row
            case Phase(name, update, microbatch):
                yield [3, name, update, microbatch]
            case Repeat(times):
                yield [4, times]
