"""Compare the allocations of training updates on a simulated T4 with those of the estimate, which needs no GPU.

    .stacks/kaggle/bin/python -m benchmarks.rehearse.allocations [--json FILE] [--only NAME ...]

On one side the engine trains on the simulated GPU: requests reach PyTorch's own caching allocator, whose record of them
is read. On the other side the updates are traced on fake tensors, and the trace is converted to requests for a
simulation of that allocator. Both run in the environment that this is started in, which has PyTorch's build with CUDA.

The allocations of both sides are aligned by size. Each that only one side has, and each that is freed at another place
among the others, is assigned to a cause.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.estimate import memory, requests
from shoestring.planning.estimate.allocator import Allocator, Block
from shoestring.planning.simulator import environment, prepare
from shoestring.planning.simulator.build import SimulatorLibraries, libraries
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Op, Phase, Trace
from shoestring.recipe.finding import load
from shoestring.recipe.options import LoadedRecipe

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "rehearse-allocations.json"
TARGET = "kaggle-t4"
MICROBATCHES = (2, 2, 2, 2)
"""Those of each update. The trace has the first two updates, and the estimate repeats the second."""
COMPARED = "update 3"
"""The update whose allocations are counted by cause: by then no state is made any more."""
MAX_EXAMPLES = 12

RECIPES = '''
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)


class Training:
    effective_batch, epochs, clip_norm = 2, 1, 1.0

    def loss(self, model, batch):
        return model(**batch).loss


class Gpt2(Training):
    """GPT-2 with 124 million parameters."""

    def model(self):
        return GPT2LMHeadModel(GPT2Config(use_cache=False))

    def batch(self, size):
        tokens = torch.randint(50_257, (size, 512))
        return {"input_ids": tokens, "labels": tokens}


class Nanogpt(Gpt2):
    """The same with the loss of nanoGPT: cross entropy of logits that are not converted to fp32 before."""

    def loss(self, model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), batch["labels"].view(-1))


class Llama(Training):
    """The shape of SmolLM2-360M, frozen in fp16, with adapters of rank 16 at all linear layers of its blocks."""

    def model(self):
        config = LlamaConfig(
            vocab_size=49_152, hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15,
            num_key_value_heads=5, tie_word_embeddings=True, max_position_embeddings=8192, use_cache=False,
        )
        model = LlamaForCausalLM(config).half()
        return get_peft_model(model, LoraConfig(r=16, lora_dropout=0.05, target_modules="all-linear"))

    def batch(self, size):
        tokens = torch.randint(49_152, (size, 1024))
        mask = torch.ones_like(tokens)
        mask[:, 900:] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


class Bert(Training):
    """BERT-base with a head for two classes."""

    def model(self):
        return BertForSequenceClassification(BertConfig())

    def batch(self, size):
        tokens, padding = torch.randint(30_522, (size, 256)), torch.zeros(size, 256, dtype=torch.int64)
        mask = torch.ones_like(tokens)
        mask[:, 200:] = 0
        return {"input_ids": tokens, "token_type_ids": padding, "attention_mask": mask, "labels": tokens[:, 0] % 2}


class Vit(Training):
    """ViT-base for images of 224 x 224."""

    def model(self):
        return ViTForImageClassification(ViTConfig(num_labels=1000))

    def batch(self, size):
        return {"pixel_values": torch.rand(size, 3, 224, 224), "labels": torch.randint(1000, (size,))}


class Resnet(Vit):
    """ResNet-50 for images of 224 x 224."""

    clip_norm = None

    def model(self):
        return ResNetForImageClassification(ResNetConfig(num_labels=1000))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
'''
"""The file of the recipes."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe of `RECIPES` with its settings."""

    recipe: str
    settings: Settings

    @property
    def name(self) -> str:
        return self.recipe.lower()

    def load(self, folder: Path) -> LoadedRecipe:
        """Load the recipe from a file in `folder`."""
        file = folder / "recipes.py"
        file.write_text(RECIPES, encoding="utf-8")
        assert self.settings.micro_batch
        return load(f"{file}:{self.recipe}", {"effective_batch": MICROBATCHES[1] * self.settings.micro_batch})


CASES = (
    Case(recipe="Gpt2", settings=Settings(micro_batch=8, precision="fp16", checkpointing="no")),
    Case(recipe="Nanogpt", settings=Settings(micro_batch=8, precision="fp16", checkpointing="no")),
    Case(
        recipe="Llama",
        settings=Settings(micro_batch=2, precision="fp16", checkpointing="no", optimizer_kernel="fused"),
    ),
    Case(
        recipe="Bert",
        settings=Settings(micro_batch=32, precision="fp16", checkpointing="no", optimizer_kernel="fused"),
    ),
    Case(recipe="Vit", settings=Settings(micro_batch=32, precision="fp32", checkpointing="no")),
    Case(recipe="Resnet", settings=Settings(micro_batch=64, precision="fp16", checkpointing="no")),
)


@dataclass(kw_only=True)
class Allocation:
    """A block that was requested."""

    bytes: int
    stretch: str
    """`loading`, or the update in which it is requested, such as `update 2`."""
    phase: str
    operator: str = ""
    """The operator that asks for it, without `aten::`."""
    kernel: str = ""
    """The function of PyTorch's `at::native` that runs it."""
    node: str = ""
    """The node of autograd that runs the operator in backward."""
    place: str = ""
    """The innermost line of Python outside of PyTorch."""
    part: str = ""
    """The part of the estimate."""


@dataclass(kw_only=True)
class Record:
    """The requests of one side, in order."""

    allocations: list[Allocation] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """The index of each allocation where it is made, and its complement (-1 for 0) where it is freed."""
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, allocation: Allocation) -> int:
        index = len(self.allocations)
        self.allocations.append(allocation)
        self.steps.append(index)
        return index

    def json(self) -> dict[str, Any]:
        return {
            "allocations": [vars(allocation) for allocation in self.allocations],
            "steps": self.steps,
            "facts": self.facts,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Record":
        allocations = [Allocation(**allocation) for allocation in values["allocations"]]
        return cls(allocations=allocations, steps=values["steps"], facts=values["facts"])


def record_estimate(case: Case) -> Record:
    """Trace the updates and return the requests that the estimate replays."""
    import torch

    device = find_target(TARGET).device
    with tempfile.TemporaryDirectory() as folder, Tracer(case.load(Path(folder))) as tracer:
        trace = requests.accumulate_in_place(tracer.trace(case.settings, accumulate=MICROBATCHES[1], device=device))
    repeated = requests.repeat_second_update(trace, len(MICROBATCHES) - 2)
    origins = _origins(repeated)
    record = Record(facts={"torch": torch.__version__, "estimate": memory.memory(trace, device).json()})
    indices: dict[object, int] = {}
    last = ("loading", "model", "")
    for key, part, size, _ in requests.requests(repeated, device):
        if size is None:
            if key in indices:
                record.steps.append(~indices.pop(key))
            continue
        # A workspace has no storage in the trace: it belongs where the tensor before it does.
        stretch, phase, operator = last = origins[key] if isinstance(key, int) else (*last[:2], part)
        indices[key] = record.add(Allocation(bytes=size, stretch=stretch, phase=phase, operator=operator, part=part))
    return record


def _origins(trace: Trace) -> dict[int, tuple[str, str, str]]:
    """Return the stretch, the phase and the operator of each storage: the operator follows what it allocates."""
    origins: dict[int, tuple[str, str, str]] = {}
    waiting: list[int] = []
    stretch, phase, updates = "loading", "model", 0
    for event in trace.events:
        match event:
            case Phase(name, _, index):
                waiting = []
                if name == "forward" and index == 0:
                    updates += 1
                stretch = f"update {updates}" if updates else "loading"
                phase = f"{name} {index + 1}" if name in ("forward", "backward") else name
            case Alloc(storage):
                origins[storage] = stretch, phase, ""
                waiting.append(storage)
            case Op(name):
                for storage in waiting:
                    origins[storage] = stretch, phase, name.removeprefix("aten::")
                waiting = []
    return origins


def record_simulated(case: Case) -> Record:
    """Train on the simulated GPU as the engine does, and return the requests that reach PyTorch's allocator."""
    import torch

    from shoestring.recipe.parts import Parts
    from shoestring.training.data.batches import to_device
    from shoestring.training.engine.building import build
    from shoestring.training.engine.determinism import deterministic
    from shoestring.training.engine.update import update

    mark: Any = torch._C._cuda_setMemoryMetadata
    micro_batch = case.settings.micro_batch
    assert micro_batch
    with tempfile.TemporaryDirectory() as folder, deterministic():
        loaded = case.load(Path(folder))
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="all")
        mark("loading/model")
        device = torch.device("cuda", 0)
        state = build(loaded, case.settings, device)
        clip_norm = Parts.from_recipe(loaded.recipe).learning.clip_norm
        assert not isinstance(clip_norm, Mapping)
        backward = torch.autograd.backward
        current = ("", 0)

        def marked_backward(*arguments: Any, **options: Any) -> None:
            mark(f"{current[0]}/backward {current[1]}")
            backward(*arguments, **options)

        def microbatches(stretch: str, count: int) -> Iterator[tuple[Any, int]]:
            nonlocal current
            for index in range(1, count + 1):
                current = (stretch, index)
                mark(f"{stretch}/forward {index}")
                yield to_device(loaded.recipe.batch(micro_batch), device), micro_batch
            mark(f"{stretch}/optimizer")

        torch.autograd.backward = marked_backward
        for number, count in enumerate(MICROBATCHES, 1):
            result = update(
                state.model,
                state.optimizer,
                loaded.recipe.loss,
                microbatches(f"update {number}", count),
                samples=count * micro_batch,
                mixed_precision=state.mixed_precision,
                clip_norm=clip_norm,
            )
            if not result.stepped:
                raise SystemExit("the optimizer made no step")
        torch.cuda.synchronize()
    snapshot: Any = torch.cuda.memory._snapshot()
    record = Record(facts={"torch": torch.__version__})
    indices: dict[int, int] = {}
    segments = []
    position = ""
    for event in snapshot["device_traces"][0]:
        # A mark holds for a thread, and autograd's threads have none: they work for the forward pass before.
        position = event["user_metadata"] or position.replace("forward", "backward")
        match event["action"]:
            case "alloc":
                stretch, _, phase = position.partition("/")
                operator, kernel, node, place = origin(event["frames"])
                allocation = Allocation(
                    bytes=event["size"],
                    stretch=stretch,
                    phase=phase,
                    operator=operator,
                    kernel=kernel,
                    node=node,
                    place=place,
                )
                indices[event["addr"]] = record.add(allocation)
            case "free_completed":
                record.steps.append(~indices.pop(event["addr"]))
            case "segment_alloc":
                segments.append(event["size"])
    statistics = torch.cuda.memory_stats()
    record.facts |= {
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        "requested": statistics["requested_bytes.all.peak"],
        "segments": segments,
    }
    return record


_OPERATOR = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply")
_KERNEL = re.compile(r"at::native::(?:\(anonymous namespace\)::)?(\w+)")
_ALLOCATES = re.compile(r"(_?(new_)?empty|resize|set_|result_type|contiguous|zeros|new_zeros|_to_copy|to_|clone)")
"""Functions that others call for their results and for copies of their operands."""


def origin(frames: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    """Return where a stack asks for memory, of which the innermost frame is the first.

    These are the operator, the function in PyTorch's `at::native` that runs it, the node of autograd and the innermost
    line of Python outside of PyTorch.
    """
    operators, kernel, node, place = [], "", "", ""
    for frame in frames:
        name, file = frame["name"], frame["filename"]
        if match := _OPERATOR.search(name):
            operators.append(match[1])
        elif match := _NODE.search(name):
            node = node or match[1]
        elif match := _KERNEL.search(name):
            if not kernel and not _ALLOCATES.match(match[1]):
                kernel = match[1]
        elif not place and file.endswith(".py") and "/torch/" not in file and "/simulator/inside/" not in file:
            place = f"{re.sub(r'^.*/(site-packages|src)/', '', file)}:{frame['line']}"
    return (
        next((name for name in operators if not name.startswith(("empty", "new_empty", "resize", "result_type"))), ""),
        kernel,
        node,
        place,
    )


RECORDERS = {"estimate": record_estimate, "simulated": record_simulated}


@cache
def align(first: tuple[object, ...], second: tuple[object, ...]) -> list[tuple[int, int]]:
    """Return the pairs of indices of a longest common subsequence.

    E. W. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986): `reach[k]` is the furthest index in `first`
    on the diagonal `k` after so many elements that only one sequence has.
    """
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(len(first) + len(second) + 1):
        history.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            is_down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if is_down else reach[diagonal - 1] + 1
            while x < len(first) and x - diagonal < len(second) and first[x] == second[x - diagonal]:
                x += 1
            reach[diagonal] = x
            if x >= len(first) and x - diagonal >= len(second):
                return _backtrack(history, x, x - diagonal)
    raise AssertionError("no path to the end")


def _backtrack(history: Sequence[Mapping[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach, diagonal = history[edits], x - y
        is_down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if is_down else diagonal - 1
        start_x = reach[before] if edits else 0
        start_y = start_x - before if edits else 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start_x, start_y
    return pairs[::-1]


@dataclass(kw_only=True)
class Alignment:
    """Which allocations of both records are the same, as indices: of the estimate first."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    """Those of the same phase and size that stand at another place in the order."""
    only_estimate: list[int] = field(default_factory=list)
    only_simulated: list[int] = field(default_factory=list)


def align_records(estimate: Record, simulated: Record) -> Alignment:
    """Align the allocations of each phase by size and operator, then what remains between these by size alone."""
    result = Alignment()
    phases = [_by_phase(record) for record in (estimate, simulated)]
    for phase in phases[1]:
        indices = [phases[0].get(phase, []), phases[1][phase]]
        chosen = [
            [record.allocations[index] for index in part]
            for record, part in zip((estimate, simulated), indices, strict=True)
        ]
        sure = align(*(tuple((x.bytes, _short(x.operator)) for x in part) for part in chosen))
        previous = (-1, -1)
        for pair in (*sure, (len(indices[0]), len(indices[1]))):
            gaps = [slice(before + 1, end) for before, end in zip(previous, pair, strict=True)]
            sizes = (tuple(x.bytes for x in part[gap]) for part, gap in zip(chosen, gaps, strict=True))
            result.pairs += [(indices[0][gaps[0].start + x], indices[1][gaps[1].start + y]) for x, y in align(*sizes)]
            if pair[0] < len(indices[0]):
                result.pairs.append((indices[0][pair[0]], indices[1][pair[1]]))
            previous = pair
    aligned = [{pair[side] for pair in result.pairs} for side in (0, 1)]
    waiting: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for index, x in enumerate(estimate.allocations):
        if index not in aligned[0]:
            waiting[x.stretch, x.phase, x.bytes].append(index)
    for index, x in enumerate(simulated.allocations):
        if index not in aligned[1]:
            if same := waiting[x.stretch, x.phase, x.bytes]:
                result.moved.append((same.pop(0), index))
            else:
                result.only_simulated.append(index)
    result.only_estimate = sorted(index for indices in waiting.values() for index in indices)
    return result


def _by_phase(record: Record) -> dict[tuple[str, str], list[int]]:
    phases: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, x in enumerate(record.allocations):
        phases[x.stretch, x.phase].append(index)
    return phases


def _short(operator: str) -> str:
    """Return an operator's name without its overload, in the form that both records have."""
    name = re.sub(r"[._](Tensor|Scalar|Tensor_Scalar|dim_IntList|self|start|start_out|default)$", "", operator)
    return name.removeprefix("_scaled_dot_product").strip("_")


def replayed(record: Record, without: Collection[int] = ()) -> dict[str, int]:
    """Replay the requests in the project's simulation of the allocator, without those of these indices."""
    allocator, segments = Allocator(), []
    blocks: dict[int, Block] = {}
    requested = peak_requested = peak = 0
    for step in record.steps:
        if step < 0:
            if ~step not in without:
                allocator.free(blocks.pop(~step))
                requested -= record.allocations[~step].bytes
        elif step not in without:
            end = allocator.end
            blocks[step] = allocator.allocate(record.allocations[step].bytes)
            requested += record.allocations[step].bytes
            peak, peak_requested = max(peak, allocator.allocated), max(peak_requested, requested)
            if allocator.end > end:
                segments.append(allocator.end - end)
    return {
        "requested": peak_requested,
        "allocated": peak,
        "reserved": allocator.peak_reserved,
        "segments": len(segments),
    }


def lifetimes(estimate: Record, simulated: Record, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the pairs that are freed at another place: by how many of the pairs' allocations later when simulated."""
    freed = []
    for side, record in enumerate((estimate, simulated)):
        known, count = {pair[side] for pair in pairs}, 0
        places = {}
        for step in record.steps:
            count += step in known
            if step < 0:
                places[~step] = count
        freed.append((places, count))
    (first, first_end), (second, second_end) = freed
    distances = {pair: second.get(pair[1], second_end) - first.get(pair[0], first_end) for pair in pairs}
    return {pair: distance for pair, distance in distances.items() if distance}


CAUSES = {
    "values of masks": "transformers reads the values of a mask or of positions, to leave out a mask that masks "
    "nothing, and indexes it; on fake tensors it does not.",
    "copy for a convolution": "The backward pass of a convolution copies the result's gradient if its strides are not "
    "those that cuDNN needs (`cudnn_convolution_backward`).",
    "scalars of the engine": "The engine scales and adds losses, and torch's GradScaler computes in fp64 and makes its "
    "tensors at the first update; the trace has fewer such scalars, and of other lifetimes.",
}

_RULES = (
    ("copy for a convolution", r"ConvolutionBackward0"),
    ("values of masks", r"transformers/masking_utils"),
)
"""Causes of differences: patterns of operator, function, node and line."""

_SCALAR_BYTES = 8


def cause_of(allocation: Allocation) -> str:
    """Return the cause of an allocation that only one side has, or that is elsewhere there; `unexplained` if it is not
    known.
    """
    text = f"{allocation.operator} {allocation.kernel} {allocation.node} {allocation.place}"
    cause_of_text = next((cause for cause, pattern in _RULES if re.search(pattern, text)), "")
    is_of_loss = re.search(r"training/engine/|(Mul|Div)Backward0|^(ones|zeros) |linalg_vector_norm", text)
    if not cause_of_text and allocation.bytes <= _SCALAR_BYTES and is_of_loss:
        return "scalars of the engine"
    return cause_of_text or "unexplained"


KINDS = {
    "only simulated": "allocated on the simulated GPU only",
    "only estimate": "in the estimate only",
    "order": "at another place among the allocations of its phase",
    "lifetime": "freed at another place among the allocations of both",
}


def compare(case: Case, estimate: Record, simulated: Record) -> dict[str, Any]:
    """Return a row of the table: numbers of both sides, and the differences by kind and cause."""
    alignment = align_records(estimate, simulated)
    groups: dict[tuple[str, str], list[tuple[int | None, int | None]]] = defaultdict(list)
    for first in alignment.only_estimate:
        groups["only estimate", cause_of(estimate.allocations[first])].append((first, None))
    for second in alignment.only_simulated:
        groups["only simulated", cause_of(simulated.allocations[second])].append((None, second))
    distances = lifetimes(estimate, simulated, alignment.pairs)
    for kind, pairs in (("order", alignment.moved), ("lifetime", distances)):
        for first, second in pairs:
            cause = cause_of(simulated.allocations[second])
            groups[kind, cause].append((first, second))
    sides = {"estimate": replayed(estimate), "simulated": replayed(simulated)}
    facts = simulated.facts
    without = {
        "estimate": replayed(estimate, set(alignment.only_estimate)),
        "simulated": replayed(simulated, set(alignment.only_simulated)),
    }
    return {
        "name": case.name,
        "settings": {name: getattr(case.settings, name) for name in ("micro_batch", "precision", "optimizer_kernel")},
        "torch": {"estimate": estimate.facts["torch"], "simulated": facts["torch"]},
        "estimated_range": {name: estimate.facts["estimate"][name] for name in ("allocated", "reserved")},
        "estimate": {**sides["estimate"], **_counts(estimate)},
        "simulated": {
            "requested": facts["requested"],
            "allocated": facts["allocated"],
            "reserved": facts["reserved"],
            "segments": len(facts["segments"]),
            **_counts(simulated),
        },
        "simulated_requests_replayed": sides["simulated"],
        "without_what_only_one_side_has": without,
        "aligned": len(alignment.pairs),
        "differences": [
            {
                "kind": kind,
                "cause": cause,
                **_group(estimate, simulated, members),
                **_effect(kind, members, estimate, simulated, sides),
            }
            for (kind, cause), members in sorted(groups.items(), key=lambda item: -len(item[1]))
        ],
    }


def _counts(record: Record) -> dict[str, Any]:
    """Return the numbers of allocations, of all updates and of the update that is compared, which the later repeat."""
    compared = [allocation for allocation in record.allocations if allocation.stretch == COMPARED]
    return {
        "requests": len(record.allocations),
        "requests_of_update": len(compared),
        "bytes_of_update": sum(allocation.bytes for allocation in compared),
        "by_phase": Counter(allocation.phase for allocation in compared),
    }


def _group(estimate: Record, simulated: Record, members: Sequence[tuple[int | None, int | None]]) -> dict[str, Any]:
    """Return the allocations of a group: their number, and the most frequent ones of the compared update."""
    found: Counter[tuple[object, ...]] = Counter()
    number = 0
    for first, second in members:
        before = None if first is None else estimate.allocations[first]
        after = None if second is None else simulated.allocations[second]
        chosen = after or before
        assert chosen
        if chosen.stretch != COMPARED:
            continue
        number += 1
        found[chosen.phase.partition(" ")[0], chosen.bytes, _origin_text(before), _origin_text(after)] += 1
    names = ("phase", "bytes", "estimate", "simulated")
    examples = [
        {"count": count, **{name: value for name, value in zip(names, key, strict=True) if value}}
        for key, count in found.most_common(MAX_EXAMPLES)
    ]
    return {"allocations": len(members), "allocations_of_update": number, "examples": examples}


def _origin_text(allocation: Allocation | None) -> str:
    if allocation is None:
        return ""
    words = (allocation.operator, allocation.kernel, allocation.node, allocation.place)
    return " < ".join(dict.fromkeys(word for word in words if word))


def _effect(
    kind: str,
    members: Sequence[tuple[int | None, int | None]],
    estimate: Record,
    simulated: Record,
    sides: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Return by how many bytes the peaks are higher with a group that only one side has."""
    if not kind.startswith("only"):
        return {}
    side = kind.removeprefix("only ")
    record, position = (estimate, 0) if side == "estimate" else (simulated, 1)
    indices = {index for member in members if (index := member[position]) is not None}
    rest = replayed(record, indices)
    # Without others, a block can be split less: then the peak of allocated bytes can be higher.
    return {f"adds_to_{name}": sides[side][name] - rest[name] for name in ("allocated", "reserved")}


def describe(row: Mapping[str, Any]) -> str:
    """Return the lines for the terminal."""
    first, second = row["estimate"], row["simulated"]
    lines = [f"{row['name']} {row['settings']}", f"{'':28}{'estimate':>15}{'simulated':>15}{'ratio':>9}"]
    for name in ("requests_of_update", "requested", "allocated", "reserved", "segments"):
        lines.append(f"  {name:26}{first[name]:>15,}{second[name]:>15,}{first[name] / second[name]:>9.4f}")
    replay = row["simulated_requests_replayed"]
    same = all(replay[name] == second[name] for name in replay)
    lines.append(f"  the simulated requests replayed give {'the same' if same else replay}; aligned {row['aligned']:,}")
    rest = row["without_what_only_one_side_has"]
    for name in ("requested", "allocated", "reserved"):
        first, second = rest["estimate"][name], rest["simulated"][name]
        lines.append(f"  {name + ', aligned only':26}{first:>15,}{second:>15,}{first / second:>9.4f}")
    for group in row["differences"]:
        effect = "".join(
            f", {group[f'adds_to_{name}'] / 2**20:+.1f} MiB {name}"
            for name in ("allocated", "reserved")
            if group.get(f"adds_to_{name}")
        )
        lines.append(f"  {group['kind']:15} {group['cause']:24}{group['allocations_of_update']:>6}{effect}")
    return "\n".join(lines)


def run(side: str, case: Case, python: Path, simulator: SimulatorLibraries) -> Record:
    """Make the record of one side in a process of its own. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "record.json")
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        variables = environment.simulated(variables, simulator, find_target(TARGET), Path(folder), operators=False)
        if side == "estimate":
            variables["CUDA_VISIBLE_DEVICES"] = ""  # PyTorch's build with CUDA, on a machine without a GPU
        command = [str(python), "-m", "benchmarks.rehearse.allocations", "--side", side, "--only", case.name]
        process = subprocess.run(
            [*command, "--json", str(out)], env=variables, cwd=ROOT, capture_output=True, text=True
        )
        if process.returncode:
            raise RuntimeError(f"{side} of {case.name}: {process.stderr.strip()[-2000:]}")
        return Record.from_json(json.loads(out.read_text()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--side", choices=RECORDERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.only or case.name in options.only]
    if options.side:
        options.json.write_text(json.dumps(RECORDERS[options.side](cases[0]).json()))
        return 0
    interpreter, build = prepare.find()
    simulator = libraries(build)
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    for case in cases:
        records = {side: run(side, case, interpreter.executable, simulator) for side in RECORDERS}
        row = compare(case, records["estimate"], records["simulated"])
        print(describe(row), flush=True)
        rows = [old for old in rows if old["name"] != case.name] + [row]
        content = {"target": TARGET, "kinds": KINDS, "causes": CAUSES, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
