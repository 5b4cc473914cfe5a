"""A trace is the same on a machine with a GPU as on one without."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Tracer, fake
from shoestring.planning.trace.record import Op, Trace
from shoestring.recipe.finding import find
from tests.planning.trace.sample_recipes import Linears


class Constructing(Linears):
    """Creates tensors on the batch's device in each way, as the caches of transformers do."""

    def loss(self, model, batch):
        device = batch.device
        created = [
            torch.tensor([], device=device),
            torch.tensor(3.0, device=device),
            torch.as_tensor([1.0, 2.0], device=device),
            torch.asarray([1.0], device=device),
            torch.arange(4.0, device=device),
            torch.full((), 2.0, device=device),
            batch.new_tensor([1.0]),
            batch.new_full((1,), 2.0),
            torch.tensor(3.0).to(device),
            torch.tensor([3]).to(device, non_blocking=True).float(),
            torch.nn.Parameter(torch.tensor(3.0)).to(device),
            torch.rand(1).to(device),
        ]
        model(batch)[[0]] = torch.tensor(1.0)
        kept = batch[[0]] * torch.tensor(2.0)
        return super().loss(model, batch) + kept.sum() + sum(tensor.sum() for tensor in created)


class Asking(Linears):
    """Decides by the GPUs of the machine, which a model should not."""

    def loss(self, model, batch):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        layers = 1 + torch.cuda.device_count() + torch.cuda.is_bf16_supported()
        losses = [super(Asking, self).loss(model, batch) for _ in range(layers)]
        return sum(losses) * torch.tensor(2.0, device=device)


class Asked(Linears):
    """Does without the machine what `Asking` does on one that has no GPU."""

    def loss(self, model, batch):
        return sum([super().loss(model, batch)]) * torch.tensor(2.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say that there is a GPU: in this process, and in the child that is forked for a live recipe."""
    if torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("torch's CUDA build calls the driver if it takes a GPU to be there")
    answers = {"is_available": True, "device_count": 1, "is_bf16_supported": True}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)


def trace_recipe(recipe: object) -> Trace:
    with Tracer(find(recipe)) as tracer:
        return tracer.trace(Settings(micro_batch=4, precision="fp16"), accumulate=2, device=DEVICES["t4"])


def names_and_storages(trace: Trace) -> tuple[list[str], object]:
    return [event.name for event in trace.events if isinstance(event, Op)], trace.storages


def test_created_tensors_are_the_same_with_a_gpu(request: pytest.FixtureRequest) -> None:
    without_gpu = trace_recipe(Constructing())
    request.getfixturevalue("gpu")
    with_gpu = trace_recipe(Constructing())
    assert (with_gpu.storages, with_gpu.events) == (without_gpu.storages, without_gpu.events)


@pytest.mark.usefixtures("gpu")
def test_recipe_finds_no_gpu() -> None:
    assert names_and_storages(trace_recipe(Asking())) == names_and_storages(trace_recipe(Asked()))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", [fake.HostMode, fake.mode()])
def test_known_values_are_not_copied_to_a_device(kind: type[FakeTensorMode]) -> None:
    with kind():
        tensor = torch.tensor([1.0], device="cuda")
    assert isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"
    assert tensor.constant is None


@pytest.mark.usefixtures("gpu")
def test_torch_itself_still_finds_the_gpu() -> None:
    from shoestring.planning.trace import simulated_device

    with simulated_device.fake_mode():
        assert torch.autocast("cuda", dtype=torch.float16)._enabled
        assert not torch.cuda.is_available()
    assert torch.cuda.is_available()
