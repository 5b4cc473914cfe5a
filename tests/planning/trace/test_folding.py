"""A trace in which most of a model's identical blocks do not run is exactly the trace in which all run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.garbage import collection_paused
from shoestring.base.settings import Settings
from shoestring.planning.trace import templates
from shoestring.planning.trace.event_log import EventLog, Position
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Storage
from shoestring.recipe import finding

LAYERS = 6
WIDTH = 32
_SIZES = {
    "vocab_size": 96,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama8": {"num_hidden_layers": 8},
    "qwen2": {},  # with biases, whose casts are freed when forward ends
    "qwen3": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 6, "num_hidden_layers": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6, "num_hidden_layers": 12},  # each sixth layer is another kind
    "mistral": {"sliding_window": 6},
    "olmo2": {},  # norms at the end of a block, after which nothing needs the block's result
}


class Encoder:
    """Layers of BERT or GPT-2, with dropout."""

    def __init__(self, family: str) -> None:
        self._family = family

    def model(self) -> nn.Module:
        from transformers import CONFIG_MAPPING, AutoModel

        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4} if self._family == "gpt2" else _SIZES
        model: nn.Module = AutoModel.from_config(CONFIG_MAPPING[self._family](**sizes, use_cache=False))
        return model

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, 24, dtype=torch.long)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        mean: Tensor = model(batch).last_hidden_state.float().square().mean()
        return mean

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1)


class Block(nn.Module):
    """A residual block that can do what folding cannot repeat."""

    def __init__(self, index: int, behavior: str) -> None:
        super().__init__()
        outer = WIDTH if behavior != "different" else WIDTH * (1 + index % 5)
        self.up, self.down = nn.Linear(WIDTH, outer), nn.Linear(outer, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0
        self.saved: list[Tensor] = []
        self.behavior = behavior

    def forward(self, hidden: Tensor, scale: Tensor | None = None) -> Any:
        inner = self.dropout(self.norm(self.down(self.up(hidden).relu())))
        match self.behavior:
            case "replaces a buffer":
                self.mean = hidden.detach().mean(0)
            case "writes a buffer":
                self.mean.copy_(hidden.detach().mean(0))
            case "counts its calls":
                self.calls += 1
            case "saves a tensor":
                self.saved.append(inner.detach().relu())
            case "two results":
                return hidden + inner, inner.sum()
            case "gradient of another input":
                inner = inner * scale
        return hidden + inner


class Stack(nn.Module):
    def __init__(self, behavior: str) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(index, behavior) for index in range(LAYERS))
        self.behavior = behavior

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        inputs_of_blocks = []
        for block in reversed(self.blocks) if self.behavior == "another order" else self.blocks:
            inputs_of_blocks.append(hidden)
            match self.behavior:
                case "two results":
                    hidden, _ = block(hidden)
                case "gradient of another input":
                    hidden = block(hidden, self.first.bias)
                case _:
                    hidden = block(hidden)
        if self.behavior == "input is used elsewhere":
            return hidden + torch.stack(inputs_of_blocks).mean(0)
        del inputs_of_blocks
        return hidden


class Blocks:
    """A stack of blocks with one `behavior`."""

    def __init__(self, behavior: str) -> None:
        self._behavior = behavior

    def model(self) -> nn.Module:
        return Stack(self._behavior)

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).float().square().mean()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


def canonical(storages: tuple[Storage, ...], events: tuple[Event, ...], divided: EventLog | None = None) -> list[Any]:
    """Return the events with storages numbered by their first appearance, with their bytes and parts, and devices.

    `divided` is the log of a model that is divided between two devices.
    """
    numbers: dict[int, int] = {}
    devices = divided.storage_devices if divided else [0] * len(storages)
    on_second = divided.second_operators if divided else set()
    assert len(devices) == len(storages)
    return [
        (type(event), numbers.setdefault(event.storage, len(numbers)), storages[event.storage], devices[event.storage])
        if isinstance(event, Alloc | Free)
        else (event, position in on_second)
        for position, event in enumerate(events)
    ]


def fold(
    recipe: Any, options: dict[str, Any], settings: dict[str, Any], gpus: int, accumulate: int, capability: Any
) -> tuple[int, str]:
    """Return the number of folded calls of blocks, and a description of the first event that folding has changed."""
    from shoestring.planning.trace import simulated_place, update
    from shoestring.planning.trace.folding import Folding, NotRepeatableError
    from shoestring.planning.trace.recorder import Recorder

    counts = []

    class Counted(Folding):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            counts.append(self)

    simulated_place.Folding = Counted  # type: ignore[misc]
    loaded = finding.load(recipe, options) if isinstance(recipe, str) else finding.find(recipe)
    records = []
    chosen = Settings(**{"micro_batch": 2, "precision": "fp16", "checkpointing": "no", "gpus": gpus, **settings})
    for folds in (True, False):
        recorder = Recorder()
        try:
            record = update.run(
                recorder,
                loaded,
                chosen,
                accumulate=accumulate,
                capability=capability,
                gpus=chosen.processes,
                folds=folds,
            )
        except NotRepeatableError as error:
            return 0, f"not repeatable: {error}"
        divided = recorder.log if recorder.log.divides else None
        records.append([*canonical(record.storages, record.events, divided), record.block_uses])
    folded, whole = records
    if folded == whole:
        return counts[0].count, "equal"
    pairs = enumerate(zip(folded, whole, strict=False))
    index = next((index for index, (a, b) in pairs if a != b), min(len(folded), len(whole)))
    return counts[0].count, f"event {index} of {len(whole)}: {folded[index : index + 3]} != {whole[index : index + 3]}"


def serve(connection: Connection, folder: str) -> None:
    """Answer requests for `fold` in a process of its own, whose simulated device cannot be removed."""
    from shoestring.planning.trace import child

    torch.set_num_threads(1)
    child._open(finding.load("finetune", {"model": folder, "rows": 100, "row_tokens": 24}))
    while request := connection.recv():
        try:
            with collection_paused():  # tensors in reference cycles would be freed at different times
                connection.send(fold(*request))
        except Exception as error:  # noqa: BLE001 - reported by the test
            connection.send((0, repr(error)))


FoldCase = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders with the configurations of language models."""
    import peft  # noqa: F401 - imported once, before the process is forked
    import transformers

    folders = {}
    for family, sizes in FAMILIES.items():
        folder: Path = tmp_path_factory.mktemp(family)
        kind = family.rstrip("8")
        config = transformers.CONFIG_MAPPING[kind](**_SIZES | sizes)
        config.architectures = [transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]
        config.save_pretrained(folder)
        folders[family] = str(folder)
    return folders


@pytest.fixture(scope="module")
def fold_case(folders: dict[str, str]) -> Iterator[FoldCase]:
    context = multiprocessing.get_context("fork")
    connection, other = context.Pipe()
    process = context.Process(target=serve, args=(other, folders["llama"]), daemon=True)
    process.start()
    other.close()  # so that the end of the process is noticed

    def fold_case(
        recipe: Any,
        options: dict[str, Any] | None = None,
        gpus: int = 1,
        accumulate: int = 1,
        capability: tuple[int, int] | None = (7, 5),
        **settings: Any,
    ) -> tuple[int, str]:
        connection.send((recipe, options or {}, settings, gpus, accumulate, capability))
        answer: tuple[int, str] = connection.recv()
        return answer

    yield fold_case
    connection.send(None)
    process.join()


CALLS = 2 * (LAYERS - 3)
"""The folded calls of one group in two updates of one microbatch."""

AMPERE = {"capability": (8, 0)}


@pytest.mark.parametrize(
    ("family", "options", "settings", "calls"),
    [
        pytest.param(
            "llama", {"lora_r": 4, "quantization": "nf4"}, {"checkpointing": "full"}, CALLS, marks=pytest.mark.slow
        ),
        ("llama", {"lora_r": 4}, {"packing": "yes"}, CALLS),
        ("llama", {"lora_r": 4}, {"streamed_blocks": LAYERS - 2, "checkpointing": "full"}, CALLS),
        pytest.param(
            "llama",
            {"lora_r": 4},
            {"gpus": 2, "sharding": "zero1", "accumulate": 2},
            4 * (LAYERS - 3),
            marks=pytest.mark.slow,
        ),
        ("llama", {"lora_r": None}, {"gpus": 2, "precision": "fp32", "checkpointing": "full"}, CALLS),
        pytest.param(
            "llama",
            {"lora_r": 4},
            {"gpus": 2, "sharding": "zero3", "checkpointing": "full", "accumulate": 2},
            4 * (LAYERS - 3),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mistral",
            {"lora_r": None},
            {"gpus": 2, "sharding": "zero2", "checkpointing": "2"},
            2,
            marks=pytest.mark.slow,
        ),
        (
            "llama8",  # two groups of four blocks
            {"lora_r": 4},
            {"gpus": 2, "sharding": "pipeline", "checkpointing": "full", "streamed_blocks": 6, "accumulate": 2},
            4 * 2,
        ),
        pytest.param(
            "gemma3_text",
            {"lora_r": 4, "quantization": "nf4", "method": "dpo"},
            {"gpus": 2, "sharding": "pipeline", "accumulate": 3},
            6 * 2 * 2 * 2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "llama", {"lora_r": None}, {"capability": None, "precision": "fp32"}, CALLS, marks=pytest.mark.slow
        ),
        pytest.param("qwen2", {"lora_r": None}, {}, CALLS, marks=pytest.mark.slow),
        pytest.param(
            "qwen2", {"lora_r": 4, "method": "dpo"}, {"precision": "bf16", **AMPERE}, 2 * CALLS, marks=pytest.mark.slow
        ),
        ("qwen3", {"lora_r": None}, {"precision": "bf16", **AMPERE}, CALLS),
        pytest.param("gemma2", {"lora_r": None}, {"accumulate": 2}, 4 * 2, marks=pytest.mark.slow),
        pytest.param("gemma3_text", {"lora_r": None}, {"checkpointing": "5"}, 2 * (2 + 2), marks=pytest.mark.slow),
        pytest.param("mistral", {"lora_r": None}, {"checkpointing": "2"}, 2, marks=pytest.mark.slow),
        pytest.param("olmo2", {"lora_r": None}, {}, CALLS, marks=pytest.mark.slow),
    ],
)
def test_language_model(
    fold_case: FoldCase,
    folders: dict[str, str],
    family: str,
    options: dict[str, Any],
    settings: dict[str, Any],
    calls: int,
) -> None:
    options = {"model": folders[family], "rows": 100, "row_tokens": 24, **options}
    assert fold_case("finetune", options, **settings) == (calls, "equal")


def test_repeated_events_are_on_the_device_of_their_template() -> None:
    log = EventLog()
    log.divides = True
    operator = Op(name="operator", flops=0, bytes=8, precision="fp32")

    def record(device: int) -> Position:
        start = log.position()
        log.device = device
        log.allocate(8, None)
        log.append_operator(operator, 1, 0)
        return start

    template = templates.make(log, record(1), {})
    record(0)
    templates.repeat(log, template, [None], lambda _: None)
    assert log.storage_devices == [1, 0, 1] and log.second_operators == {1, 5}
    with pytest.raises(templates.NotRepeatableError, match="on two devices"):
        templates.make(log, Position(0, 0, 0, 0), {})


@pytest.mark.parametrize(("family", "precision"), [("bert", "fp16"), ("gpt2", "fp32")])
def test_encoder(fold_case: FoldCase, family: str, precision: str) -> None:
    assert fold_case(Encoder(family), precision=precision) == (CALLS, "equal")


@pytest.mark.parametrize(("behavior", "checkpointing"), [("plain", "no"), ("writes a buffer", "full")])
def test_own_blocks(fold_case: FoldCase, behavior: str, checkpointing: str) -> None:
    assert fold_case(Blocks(behavior), checkpointing=checkpointing) == (CALLS, "equal")
    assert fold_case(Blocks(behavior), checkpointing=checkpointing, gpus=2, sharding="zero2") == (CALLS, "equal")


@pytest.mark.parametrize(
    "behavior",
    ["different", "counts its calls", "replaces a buffer", "two results", "gradient of another input"],
)
def test_blocks_that_cannot_be_folded_run(fold_case: FoldCase, behavior: str) -> None:
    assert fold_case(Blocks(behavior)) == (0, "equal")


@pytest.mark.parametrize(
    ("behavior", "message"),
    [
        ("saves a tensor", "remain allocated"),
        ("another order", "another order"),
        ("input is used elsewhere", "used elsewhere"),
    ],
)
def test_folding_that_would_be_wrong_is_refused(fold_case: FoldCase, behavior: str, message: str) -> None:
    calls, result = fold_case(Blocks(behavior))
    assert result.startswith("not repeatable") and message in result, (calls, result)
