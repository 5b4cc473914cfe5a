"""Memory of one of two GPUs under each sharding setting, counted by hand."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import MIB
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.projection import on_one_gpu
from shoestring.planning.trace import Trace, Tracer
from shoestring.planning.trace.distributed import BUCKET, FIRST_BUCKET, buckets
from shoestring.planning.trace.record import Alloc, Free, Phase
from shoestring.recipe import finding
from shoestring.techniques.buckets import fill
from shoestring.techniques.whole_weights import whole_weights
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.precision import mixed_precision
from tests.planning.trace.observer import Observer

WIDTH = 256
BLOCKS = 4
ROWS = 16

BLOCK = 2 * WIDTH * WIDTH * 4
ROOT = 2 * WIDTH * WIDTH * 4
"""Bytes of the first and the last layer, which are in no block."""
ALL = BLOCKS * BLOCK + ROOT


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(self.up(hidden).relu())


class Stack(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.last = nn.Linear(WIDTH, width, bias=False)
        self.register_buffer("counts", torch.zeros(1000))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


class Trained:
    def model(self) -> nn.Module:
        return Stack()

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Its states are created with the optimizer, one for each parameter.
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.Adagrad(trainable)


class Frozen(Trained):
    """Only the blocks' second layers are trained."""

    def model(self) -> nn.Module:
        model = Stack().requires_grad_(False)
        for block in model.blocks:
            block.down.requires_grad_()
        return model


class Odd(Trained):
    def model(self) -> nn.Module:
        return Stack(width=5)


class Uneven(Trained):
    """The last layer is four times as large as the others."""

    def model(self) -> nn.Module:
        return Stack(width=4 * WIDTH)


class Generating(Trained):
    """Generates with the weights of layers that it does not call, after calls of all of them."""

    def rollout(self, model: nn.Module, batch: Tensor) -> Iterator[Any]:
        with whole_weights(model):
            yield [model(batch)]
            yield [batch @ model.get_parameter("blocks.0.up.weight")]


class TwoTypes(Trained):
    def model(self) -> nn.Module:
        model = Stack()
        model.blocks[0].down.half()
        return model


TraceSharding = Callable[..., Trace]


@pytest.fixture(scope="module")
def tracers() -> Iterator[dict[type, Tracer]]:
    open_tracers: dict[type, Tracer] = {}
    yield open_tracers
    for tracer in open_tracers.values():
        tracer.close()


@pytest.fixture
def trace_sharding(tracers: dict[type, Tracer]) -> TraceSharding:
    def trace(
        sharding: str,
        recipe: type = Trained,
        *,
        gpus: int = 2,
        logical_shards: int | None = None,
        accumulate: int = 1,
        checkpointing: str = "no",
        offload: Literal["no", "optimizer", "parameters"] = "no",
        torch_ddp: bool = False,
    ) -> Trace:
        if recipe not in tracers:
            tracers[recipe] = Tracer(finding.find(recipe()))
        settings = Settings(
            micro_batch=ROWS,
            precision="fp32",
            sharding=sharding,
            checkpointing=checkpointing,
            offload=offload,
            logical_shards=logical_shards,
        )
        return tracers[recipe].trace(
            settings, accumulate=accumulate, device=DEVICES["t4"], gpus=gpus, torch_ddp=torch_ddp
        )

    return trace


def live(trace: Trace, name: str) -> Counter[str]:
    """Return the bytes by part at the start of a phase of the second update."""
    sizes: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, Phase) and (event.name, event.update) == (name, 1):
            return +sizes
        count(sizes, trace, event)
    raise AssertionError(f"no phase {name}")


def part_peak(trace: Trace, part: str, name: str) -> int:
    """Return the peak bytes of a part in this phase of the second update."""
    sizes: Counter[str] = Counter()
    peak = 0
    inside = False
    for event in trace.events:
        if isinstance(event, Phase):
            inside = (event.name, event.update) == (name, 1)
        count(sizes, trace, event)
        peak = max(peak, sizes[part]) if inside else peak
    return peak


def count(sizes: Counter[str], trace: Trace, event: object) -> None:
    if isinstance(event, Alloc | Free):
        storage = trace.storages[event.storage]
        sizes[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes


def test_sharding_does_not_affect_a_single_gpu(trace_sharding: TraceSharding) -> None:
    assert trace_sharding("zero3", gpus=1) == trace_sharding("ddp", gpus=1)
    assert live(trace_sharding("ddp", gpus=1), "optimizer")["gradients"] == ALL


def without_buckets(sizes: Counter[str]) -> Counter[str]:
    """Return the sizes of an update that has begun without the buckets, which it allocates first."""
    return Counter({part: size for part, size in sizes.items() if part != "gradient buckets"})


def test_bucket_exists_from_the_beginning_of_an_update_to_its_exchange(trace_sharding: TraceSharding) -> None:
    trace = trace_sharding("ddp")
    one_gpu = live(trace_sharding("ddp", gpus=1), "optimizer")
    assert live(trace, "optimizer") == one_gpu + Counter({"temporaries": COPIES})
    assert part_peak(trace, "gradient buckets", "exchange") == ALL + 4  # the loss
    assert part_peak(trace, "gradient buckets", "backward") == ALL + 4
    assert part_peak(trace_sharding("ddp", Frozen), "gradient buckets", "exchange") == BLOCKS * BLOCK // 2 + 4


def test_bucket_is_filled_with_pieces_of_tensors() -> None:
    tensors = [torch.arange(5.0), torch.arange(6.0).view(2, 3).t(), torch.arange(1.0)]
    groups = [[piece.tolist() for piece in pieces] for pieces in fill(tensors, 4)]
    assert groups == [[[0, 1, 2, 3]], [[4], [0, 1, 2]], [[3, 4, 5], [0]]]


@pytest.mark.parametrize(("gpus", "logical_shards", "buffers"), [(1, 2, 2), (1, 4, 3), (2, 4, 2), (1, 8, 4)])
def test_each_level_of_the_tree_needs_another_gradient(
    trace_sharding: TraceSharding, gpus: int, logical_shards: int, buffers: int
) -> None:
    trace = trace_sharding("ddp", gpus=gpus, logical_shards=logical_shards, accumulate=2)
    assert part_peak(trace, "gradients", "backward") == buffers * ALL
    assert live(trace, "optimizer")["gradients"] == ALL
    assert without_buckets(live(trace, "forward")) == live(trace, "end")


def test_replica_without_exchange_is_one_gpu(trace_sharding: TraceSharding) -> None:
    alone = trace_sharding("ddp", gpus=1, accumulate=2)
    for torch_ddp, copies in ((False, COPIES), (True, 0)):
        replica = trace_sharding("ddp", accumulate=2, torch_ddp=torch_ddp)
        assert peaks(on_one_gpu(replica)) == [size + copies for size in peaks(alone)]


def test_fsdp_accumulates_logical_shards(trace_sharding: TraceSharding) -> None:
    assert trace_sharding("zero2", logical_shards=8, accumulate=4) == trace_sharding("zero2", accumulate=4)


def test_distributed_data_parallel_holds_all_gradients_twice(trace_sharding: TraceSharding) -> None:
    single, replica = (live(trace_sharding("ddp", gpus=gpus, torch_ddp=True), "optimizer") for gpus in (1, 2))
    assert replica == single + Counter({"gradient buckets": ALL})


def test_distributed_data_parallel_frees_old_buckets_before_rebuilding(trace_sharding: TraceSharding) -> None:
    trace = trace_sharding("ddp", torch_ddp=True)
    bucket_sizes = [storage.bytes for storage in trace.storages if storage.part == "gradient buckets"]
    # The first bucket has four layers of 256 KiB; the other layers fit in one bucket of 25 MiB.
    assert bucket_sizes == [ALL, FIRST_BUCKET, ALL - FIRST_BUCKET]
    sizes: Counter[str] = Counter()
    highest = 0
    for event in trace.events:
        count(sizes, trace, event)
        highest = max(highest, sizes["gradient buckets"])
    assert highest == ALL


def test_buckets_exclude_frozen_weights(trace_sharding: TraceSharding) -> None:
    live_bytes = live(trace_sharding("ddp", Frozen, torch_ddp=True), "optimizer")
    assert live_bytes["gradient buckets"] == BLOCKS * BLOCK // 2


def test_bucket_ends_when_it_reaches_its_limit() -> None:
    sizes = [MIB // 2, MIB // 2 - 1, 2, 20 * MIB, 6 * MIB, 1]
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    groups = buckets(tensors, [FIRST_BUCKET, BUCKET])
    assert [[tensor.numel() for tensor in bucket] for bucket in groups] == [sizes[:3], sizes[3:5], sizes[5:]]


def test_buckets_have_one_type_each() -> None:
    tensors = [torch.empty(8, dtype=dtype, device="meta") for dtype in (torch.half, torch.float, torch.half)]
    assert [len(bucket) for bucket in buckets(tensors, [BUCKET])] == [2, 1]


def test_zero1_shards_only_the_optimizer_states(trace_sharding: TraceSharding) -> None:
    whole, sharded = live(trace_sharding("ddp"), "optimizer"), live(trace_sharding("zero1"), "optimizer")
    assert whole["optimizer states"] == ALL
    # Ten equal layers: five for each GPU.
    assert sharded == {**whole, "optimizer states": ALL // 2}


def test_zero1_assigns_the_largest_layers_first(trace_sharding: TraceSharding) -> None:
    # Of one layer of four units and nine of one unit, the GPU with the larger share has seven units.
    assert live(trace_sharding("zero1", Uneven), "optimizer")["optimizer states"] == 7 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_zero2_and_zero3_shard_everything(trace_sharding: TraceSharding, sharding: str, accumulate: int) -> None:
    sizes = live(trace_sharding(sharding, accumulate=accumulate), "optimizer")
    assert sizes.pop("temporaries") + sizes.pop("activations", 0) == COPIES + 4
    assert sizes == {
        "weights": ALL // 2,
        "gradients": ALL // 2,
        "optimizer states": ALL // 2,
        "buffers": 4000,
    }


COPIES = 4000 + 4
"""Bytes of the engine's copy of the buffers, which each logical shard begins with, and of its sum of losses."""

SCALARS = 3 * 4
"""The engine's sum of losses and their mean, where a loop has one loss."""


def loading_of(trace: Trace) -> list[tuple[str, int]]:
    """Return the parts and the bytes, below 0 where they are freed, of what happens before the first update."""
    steps = []
    for event in trace.events:
        if isinstance(event, Phase) and event.name != "model":
            break
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            steps.append((storage.part, storage.bytes if isinstance(event, Alloc) else -storage.bytes))
    return steps


def test_modules_are_loaded_whole_before_they_are_sharded(trace_sharding: TraceSharding) -> None:
    layer = WIDTH * WIDTH * 4
    whole, shards = [("loading copies", layer)] * 2, [("weights", layer // 2)] * 2
    freed = [("loading copies", -layer)] * 2
    of_root = [*whole, ("buffers", 4000), *shards, *freed]
    expected = [*BLOCKS * [*whole, *shards, *freed], *of_root]
    # Adagrad's states are created with the optimizer.
    others = {"optimizer states", "temporaries", "gradient buckets"}
    assert [step for step in loading_of(trace_sharding("zero3")) if step[0] not in others] == expected


def test_each_module_is_gathered_before_the_first_update(trace_sharding: TraceSharding) -> None:
    trace = trace_sharding("zero3")
    phases = [event.name if isinstance(event, Phase) else None for event in trace.events]
    start, batch = phases.index("forward"), [storage.part for storage in trace.storages].index("batch")
    end = trace.events.index(Alloc(batch))
    storages = [trace.storages[event.storage] for event in trace.events[start:end] if isinstance(event, Alloc)]
    requested = [storage for storage in storages if storage.part == "gathered weights"]
    layer = WIDTH * WIDTH * 4
    # First the buffer of a module, on the stream of the computation, then its two weights.
    assert [storage.bytes for storage in requested] == (BLOCKS + 1) * [BLOCK, layer, layer]
    # Before them the copies of buffers, and the bucket of the sums of losses.
    assert {storage.part for storage in storages} == {"gathered weights", "temporaries", "gradient buckets"}


def test_frozen_weights_are_sharded(trace_sharding: TraceSharding) -> None:
    trained = BLOCKS * BLOCK // 2
    live_bytes = live(trace_sharding("zero3", Frozen), "optimizer")
    assert live_bytes["weights"] == ALL // 2
    assert live_bytes["gradients"] == trained // 2
    assert live_bytes["optimizer states"] == trained // 2


def test_rows_are_padded_to_the_number_of_gpus(trace_sharding: TraceSharding) -> None:
    row = WIDTH * 4
    trace = trace_sharding("zero3", Odd)
    assert live(trace, "optimizer")["weights"] == (ALL - WIDTH * row) // 2 + 3 * row
    assert live(trace, "backward")["gathered weights"] == WIDTH * row + 6 * row


def test_zero3_reshards_blocks_after_forward(trace_sharding: TraceSharding) -> None:
    assert live(trace_sharding("zero3"), "backward")["gathered weights"] == ROOT
    assert live(trace_sharding("zero2"), "backward")["gathered weights"] == ALL


@pytest.mark.parametrize("checkpointing", ["no", "full"])
def test_zero3_holds_one_block_and_two_buffers(trace_sharding: TraceSharding, checkpointing: str) -> None:
    trace = trace_sharding("zero3", checkpointing=checkpointing)
    for phase in ("forward", "backward"):
        assert part_peak(trace, "gathered weights", phase) == ROOT + BLOCK
    # The buffer of the previous block is freed only after the next block is gathered.
    assert part_peak(trace, "all-gather buffers", "forward") == max(ROOT + BLOCK, 2 * BLOCK)
    assert part_peak(trace, "all-gather buffers", "backward") == BLOCK
    assert part_peak(trace, "reduce-scatter buffers", "backward") == max(ROOT, BLOCK)


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_offloaded_states_are_on_no_gpu(trace_sharding: TraceSharding, sharding: str) -> None:
    without = trace_sharding(sharding, accumulate=2)
    trace = trace_sharding(sharding, accumulate=2, offload="optimizer")
    assert live(trace, "optimizer") + Counter({"optimizer states": live(without, "optimizer")["optimizer states"]}) == (
        live(without, "optimizer")
    )
    assert part_peak(trace, "optimizer states", "optimizer") == 0
    # Weights of which the GPU has the states are in both memories.
    share = ALL if sharding == "ddp" else ALL // 2
    sizes = dict(trace.host_bytes)
    assert share <= sizes.pop("optimizer states") <= share + 100  # and the number of the step of each weight
    assert sizes == {"weights": share, "gradients": share}


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_offloaded_shards_are_copied_to_be_gathered(trace_sharding: TraceSharding, sharding: str) -> None:
    trace = trace_sharding(sharding, accumulate=2, offload="parameters")
    sizes = live(trace, "optimizer")
    assert sizes.pop("temporaries") + sizes.pop("activations", 0) == COPIES + 4
    assert sizes == {"buffers": 4000}
    assert trace.host_bytes["weights"] == trace.host_bytes["gradients"] == ALL // 2
    # A copy of each shard of a module, besides the buffers without offload, while that of the module is filled.
    without = trace_sharding(sharding, accumulate=2)
    buffers = "all-gather buffers"
    assert part_peak(trace, buffers, "forward") == part_peak(without, buffers, "forward") + BLOCK // 2
    # The gradients of a module leave the device as soon as they are reduced.
    assert part_peak(trace, "gradients", "backward") == max(BLOCK, ROOT) // 2
    assert part_peak(trace, "reduce-scatter buffers", "backward") == max(ROOT, BLOCK)


@pytest.mark.parametrize("offload", ["no", "parameters"])
def test_all_weights_are_gathered_to_generate(trace_sharding: TraceSharding, offload: Any) -> None:
    trace = trace_sharding("zero3", Generating, offload=offload)
    # The last module's buffer, and copies of its shards from the host, are there while its weights are copied out.
    copies = 0 if offload == "no" else ROOT // 2
    assert ALL + ROOT <= part_peak(trace, "gathered weights", "generation") <= ALL + ROOT + copies
    assert live(trace, "forward")["gathered weights"] == 0
    assert part_peak(trace, "gathered weights", "forward") == ROOT + BLOCK


def test_offloaded_weights_of_replicas_are_exchanged_on_the_host(trace_sharding: TraceSharding) -> None:
    without, trace = trace_sharding("ddp"), trace_sharding("ddp", offload="parameters")
    assert live(trace, "optimizer")["weights"] == live(trace, "optimizer")["gradients"] == ROOT
    assert trace.host_bytes["weights"] == ALL
    # Weights of this size are sent in buckets, which are on the GPU.
    assert part_peak(trace, "gradient buckets", "exchange") == part_peak(without, "gradient buckets", "exchange")


@pytest.mark.parametrize("offload", ["no", "optimizer", "parameters"])
@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_updates_leave_no_storages_behind(trace_sharding: TraceSharding, sharding: str, offload: Any) -> None:
    trace = trace_sharding(sharding, offload=offload)
    assert without_buckets(live(trace, "forward")) == live(trace, "end")


def test_block_with_two_gradient_types_cannot_be_sharded(trace_sharding: TraceSharding) -> None:
    with pytest.raises(UsageError, match=r"float16, torch\.float32") as error:
        trace_sharding("zero3", TwoTypes)
    assert "zero1" in (error.value.hint or "")


class Stepped(Trained):
    """A recipe whose optimizer allocates nothing, so that peaks are those of forward and backward."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), foreach=True)


def peaks(trace: Trace) -> list[int]:
    """Return the peak bytes of each forward and each backward."""
    sizes: Counter[str] = Counter()
    phase_peaks: list[int] = []
    inside = False
    for event in trace.events:
        if isinstance(event, Phase):
            inside = event.name in ("forward", "backward")
            phase_peaks += [sizes.total()] if inside else []
        count(sizes, trace, event)
        if inside:
            phase_peaks[-1] = max(phase_peaks[-1], sizes.total())
    return phase_peaks


def peak_of_update(trace: Trace) -> int:
    """Return the peak bytes of the second update."""
    sizes: Counter[str] = Counter()
    peak = 0
    for event in trace.events:
        count(sizes, trace, event)
        peak = 0 if isinstance(event, Phase) and event.update == 0 else max(peak, sizes.total())
    return peak


def real_peaks(model: nn.Module, observer: Observer) -> list[int]:
    """Return the same for two updates on real tensors."""
    optimizer = torch.optim.SGD(model.parameters(), foreach=True)
    phase_peaks = []
    for _ in range(2):
        with observer:
            observer.pop_peak_bytes()
            loss = model(torch.zeros(ROWS, WIDTH)).square().mean()
            phase_peaks.append(observer.pop_peak_bytes())
            loss.backward()
            phase_peaks.append(observer.pop_peak_bytes())
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return phase_peaks


@pytest.fixture
def two_processes() -> Iterator[None]:
    """Initialize a group of two processes that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_process() -> Iterator[None]:
    """Initialize a group of one process, in which DistributedDataParallel behaves the same."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.usefixtures("two_processes")
def test_peaks_equal_those_of_fsdp2(trace_sharding: TraceSharding, sharding: str) -> None:
    model = Stack()
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=sharding == "zero3")
    fully_shard(model, mesh=mesh)
    observer = Observer([*(shard.to_local() for shard in model.parameters()), *model.buffers()])
    expected = [size + COPIES for size in real_peaks(model, observer)]
    assert peaks(trace_sharding(sharding, Stepped)) == pytest.approx(expected, abs=SCALARS)


@pytest.mark.usefixtures("one_process")
def test_peaks_equal_those_of_distributed_data_parallel(trace_sharding: TraceSharding) -> None:
    model = Stack()
    observer = Observer([*model.parameters(), *model.buffers()])
    with observer:
        replica = DistributedDataParallel(model)
    expected = pytest.approx(real_peaks(replica, observer), abs=SCALARS)
    assert peaks(trace_sharding("ddp", Stepped, torch_ddp=True)) == expected


class SilentPeers(Ranks):
    """The first of several ranks; the others answer with its own facts."""

    def _gather(self, tensor: Tensor, patience: float | None = None) -> list[list[Any]]:
        return [tensor.tolist()] * self.size


def real_peak_of_engine(gpus: int, logical_shards: int, microbatches: int) -> int:
    """Return the peak bytes of the second of two updates that the engine makes on real tensors."""
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), foreach=True)
    shards = LogicalShards.of_rank(logical_shards, size=gpus)
    updates = ShardedUpdates(model, optimizer, shards, SilentPeers(size=gpus), torch.device("cpu"), seed=0)
    observer = Observer([*model.parameters(), *model.buffers()])
    for number in range(2):
        with observer:
            observer.pop_peak_bytes()
            updates.update(
                lambda model, batch: model(batch).square().mean(),
                number,
                [(shard, [(torch.zeros(ROWS, WIDTH), ROWS) for _ in range(microbatches)]) for shard in shards.own],
                samples=ROWS * microbatches * logical_shards,
                mixed_precision=mixed_precision("fp32", torch.device("cpu")),
            )
            peak = observer.pop_peak_bytes()
    return peak


@pytest.mark.parametrize(("gpus", "logical_shards", "microbatches"), [(2, 2, 2), (1, 4, 1), (2, 8, 2)])
def test_peak_equals_that_of_the_engine(
    trace_sharding: TraceSharding, gpus: int, logical_shards: int, microbatches: int
) -> None:
    trace = trace_sharding("ddp", Stepped, gpus=gpus, logical_shards=logical_shards, accumulate=microbatches)
    peak = peak_of_update(trace)
    # The test makes all batches before the update; sums of losses and facts are a few KiB.
    batches = logical_shards // gpus * microbatches * ROWS * WIDTH * 4
    assert peak <= real_peak_of_engine(gpus, logical_shards, microbatches) <= peak + batches + 8192
