"""What one of two GPUs holds under each way of dividing the work, counted by hand."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from shoestring.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.recipe import finding
from shoestring.settings import Settings
from shoestring.trace import Trace, Tracer
from shoestring.trace.record import Alloc, Free, Phase
from shoestring.trace.replicas import BUCKET, FIRST_BUCKET, buckets
from shoestring.units import MIB
from tests.trace.observer import Observer

WIDTH = 256
BLOCKS = 4
ROWS = 16

BLOCK = 2 * WIDTH * WIDTH * 4
ROOT = 2 * WIDTH * WIDTH * 4
"""Of the first and the last layer, which are in no block."""
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
        self.register_buffer("seen", torch.zeros(1000))

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
        # Its states are there from the beginning, one for each parameter.
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


class TwoTypes(Trained):
    def model(self) -> nn.Module:
        model = Stack()
        model.blocks[0].down.half()
        return model


Ask = Callable[..., Trace]


@pytest.fixture(scope="module")
def tracers() -> Iterator[dict[type, Tracer]]:
    open_: dict[type, Tracer] = {}
    yield open_
    for tracer in open_.values():
        tracer.close()


@pytest.fixture
def ask(tracers: dict[type, Tracer]) -> Ask:
    def trace(sharding: str, kind: type = Trained, *, gpus: int = 2, accumulate: int = 1, again: str = "no") -> Trace:
        if kind not in tracers:
            tracers[kind] = Tracer(finding.find(kind()))
        settings = Settings(micro_batch=ROWS, precision="fp32", sharding=sharding, checkpointing=again)
        return tracers[kind].trace(settings, accumulate=accumulate, device=DEVICES["t4"], gpus=gpus)

    return trace


def live(trace: Trace, name: str) -> Counter[str]:
    """Bytes by part when a phase of the second update begins."""
    sizes: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, Phase) and (event.name, event.update) == (name, 1):
            return +sizes
        count(sizes, trace, event)
    raise AssertionError(f"no phase {name}")


def most(trace: Trace, part: str, name: str) -> int:
    """The most bytes of a part at once, in this phase of the second update."""
    sizes: Counter[str] = Counter()
    found = 0
    inside = False
    for event in trace.events:
        if isinstance(event, Phase):
            inside = (event.name, event.update) == (name, 1)
        count(sizes, trace, event)
        found = max(found, sizes[part]) if inside else found
    return found


def count(sizes: Counter[str], trace: Trace, event: object) -> None:
    if isinstance(event, Alloc | Free):
        storage = trace.storages[event.storage]
        sizes[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes


def test_one_gpu_alone_holds_the_same_whatever_is_divided(ask: Ask) -> None:
    assert ask("zero3", gpus=1) == ask("ddp", gpus=1)
    assert live(ask("ddp", gpus=1), "optimizer")["gradients"] == ALL


def test_ddp_holds_all_gradients_twice(ask: Ask) -> None:
    alone, replica = live(ask("ddp", gpus=1), "optimizer"), live(ask("ddp"), "optimizer")
    assert replica == alone + Counter({"gradient buckets": ALL})


def test_ddp_buckets_are_made_anew_in_the_order_of_readiness_when_the_old_ones_are_gone(ask: Ask) -> None:
    trace = ask("ddp")
    made = [storage.bytes for storage in trace.storages if storage.part == "gradient buckets"]
    # 256 KiB each: of the last layer and three of blocks; all ten layers are less than a MiB and 25 MiB more.
    assert made == [ALL, FIRST_BUCKET, ALL - FIRST_BUCKET]
    sizes: Counter[str] = Counter()
    highest = 0
    for event in trace.events:
        count(sizes, trace, event)
        highest = max(highest, sizes["gradient buckets"])
    assert highest == ALL


def test_ddp_has_no_gradients_of_frozen_weights_in_its_buckets(ask: Ask) -> None:
    assert live(ask("ddp", Frozen), "optimizer")["gradient buckets"] == BLOCKS * BLOCK // 2


def test_a_bucket_ends_with_the_tensor_that_reaches_its_limit() -> None:
    sizes = [MIB // 2, MIB // 2 - 1, 2, 20 * MIB, 6 * MIB, 1]
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    found = buckets(tensors, [FIRST_BUCKET, BUCKET])
    assert [[tensor.numel() for tensor in bucket] for bucket in found] == [sizes[:3], sizes[3:5], sizes[5:]]


def test_buckets_have_one_type_each() -> None:
    tensors = [torch.empty(8, dtype=dtype, device="meta") for dtype in (torch.half, torch.float, torch.half)]
    assert [len(bucket) for bucket in buckets(tensors, [BUCKET])] == [2, 1]


def test_zero1_divides_the_optimizers_states_alone(ask: Ask) -> None:
    whole, divided = live(ask("ddp"), "optimizer"), live(ask("zero1"), "optimizer")
    assert whole["optimizer states"] == ALL
    # Ten equal layers: five for each GPU.
    assert divided == {**whole, "optimizer states": ALL // 2}


def test_zero1_gives_the_largest_layers_away_first(ask: Ask) -> None:
    # 4 + 3 and 1 + 1 + 1 + 1 + 2 of nine layers of one unit and one of four; the fuller GPU counts.
    assert live(ask("zero1", Uneven), "optimizer")["optimizer states"] == 7 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_zero2_and_zero3_divide_weights_gradients_and_states(ask: Ask, sharding: str, accumulate: int) -> None:
    assert live(ask(sharding, accumulate=accumulate), "optimizer") == {
        "weights": ALL // 2,
        "gradients": ALL // 2,
        "optimizer states": ALL // 2,
        "buffers": 4000,
    }


def test_divided_weights_were_never_whole(ask: Ask) -> None:
    trace = ask("zero3")
    made = [trace.storages[event.storage] for event in trace.events if isinstance(event, Alloc)]
    assert sum(storage.bytes for storage in made if storage.part == "weights") == ALL // 2


def test_what_is_frozen_is_divided_as_well(ask: Ask) -> None:
    trained = BLOCKS * BLOCK // 2
    found = live(ask("zero3", Frozen), "optimizer")
    assert found["weights"] == ALL // 2
    assert found["gradients"] == trained // 2
    assert found["optimizer states"] == trained // 2


def test_rows_are_padded_to_the_number_of_gpus(ask: Ask) -> None:
    row = WIDTH * 4
    found = ask("zero3", Odd)
    assert live(found, "optimizer")["weights"] == (ALL - WIDTH * row) // 2 + 3 * row
    assert live(found, "backward")["gathered weights"] == WIDTH * row + 6 * row


def test_zero3_keeps_the_roots_weights_between_forward_and_backward_and_zero2_all(ask: Ask) -> None:
    assert live(ask("zero3"), "backward")["gathered weights"] == ROOT
    assert live(ask("zero2"), "backward")["gathered weights"] == ALL


@pytest.mark.parametrize("again", ["no", "full"])
def test_zero3_holds_one_block_and_the_buffers_of_two(ask: Ask, again: str) -> None:
    trace = ask("zero3", again=again)
    for phase in ("forward", "backward"):
        assert most(trace, "gathered weights", phase) == ROOT + BLOCK
    # The buffer of the block before waits until the next one's weights have arrived.
    assert most(trace, "all-gather buffers", "forward") == max(ROOT + BLOCK, 2 * BLOCK)
    assert most(trace, "all-gather buffers", "backward") == BLOCK
    assert most(trace, "reduce-scatter buffers", "backward") == max(ROOT, BLOCK)


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_nothing_is_left_over_from_one_update_to_the_next(ask: Ask, sharding: str) -> None:
    trace = ask(sharding)
    first, second = live(trace, "forward"), live(trace, "end")
    assert first == second


def test_a_block_with_gradients_of_two_types_cannot_be_divided(ask: Ask) -> None:
    with pytest.raises(UsageError, match=r"float16, torch\.float32") as error:
        ask("zero3", TwoTypes)
    assert "zero1" in (error.value.hint or "")


class Stepped(Trained):
    """An optimizer that needs nothing, so that peaks are those of forward and backward."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), foreach=True)


def peaks(trace: Trace) -> list[int]:
    """The most bytes in each forward and each backward."""
    sizes: Counter[str] = Counter()
    found: list[int] = []
    inside = False
    for event in trace.events:
        if isinstance(event, Phase):
            inside = event.name in ("forward", "backward")
            found += [sizes.total()] if inside else []
        count(sizes, trace, event)
        if inside:
            found[-1] = max(found[-1], sizes.total())
    return found


def really(model: nn.Module, observer: Observer) -> list[int]:
    """The same of two updates on real tensors."""
    optimizer = torch.optim.SGD(model.parameters(), foreach=True)
    found = []
    for _ in range(2):
        with observer:
            observer.peak()
            loss = model(torch.zeros(ROWS, WIDTH)).square().mean()
            found.append(observer.peak())
            loss.backward()
            found.append(observer.peak())
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.fixture
def two_processes() -> Iterator[None]:
    """A group of two in which nothing is sent."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_process() -> Iterator[None]:
    """A group of one; DistributedDataParallel does the same in it."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.usefixtures("two_processes")
def test_peaks_are_those_of_fsdp2_itself(ask: Ask, sharding: str) -> None:
    model = Stack()
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=sharding == "zero3")
    fully_shard(model, mesh=mesh)
    observer = Observer([*(shard.to_local() for shard in model.parameters()), *model.buffers()])
    assert really(model, observer) == peaks(ask(sharding, Stepped))


@pytest.mark.usefixtures("one_process")
def test_peaks_are_those_of_distributed_data_parallel_itself(ask: Ask) -> None:
    model = Stack()
    observer = Observer([*model.parameters(), *model.buffers()])
    with observer:
        replica = DistributedDataParallel(model)
    assert really(replica, observer) == peaks(ask("ddp", Stepped))
