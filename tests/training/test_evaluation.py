import math
import os
import time

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.training.data import sequential
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.evaluation import best_entry, evaluate, patience_exhausted
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import SessionOver, Stop

CPU = torch.device("cpu")


class Plain:
    def model(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 1))
        model[2].eval()  # frozen on purpose
        return model

    def batch(self, size):
        return (torch.zeros(size, 3),)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()


DATA = TensorDataset(torch.randn(10, 3, generator=torch.Generator().manual_seed(0)))


def run(recipe, model, micro_batch=4, limit=None, dataset=DATA, workers=0):
    stop, fp32 = Stop(deadline=Deadline(limit), signals=StopSignals()), mixed_precision("fp32", CPU)
    sizes = {"micro_batch": micro_batch, "workers": workers}
    return evaluate(find(recipe), model, fp32, dataset, device=CPU, stop=stop, settings=Settings(), **sizes)


def test_default_metric_is_the_mean_loss_in_evaluation_mode():
    model = Plain().model()
    with torch.no_grad():
        expected = model.eval()(DATA.tensors[0]).square().mean()
    model.train()
    assert run(Plain(), model)["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert run(Plain(), model, micro_batch=10)["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_module_modes_are_restored_and_weights_unchanged():
    model = Plain().model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(Plain(), model)
    assert model[1].training
    assert not model[2].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_evaluation_polls_the_clock():
    model = Plain().model()
    with pytest.raises(SessionOver):
        run(Plain(), model, limit=0.5)
    assert model.training


class ProcessIds:
    """Samples with the id of the process that fetched them and a random number."""

    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()]), torch.rand(1)


@pytest.fixture
def free_processes(monkeypatch):
    """Set the cost of starting a process to zero, so that it always pays."""
    monkeypatch.setattr(sequential, "_START_SECONDS", 0.0)


def collect_batches(workers, dataset=None, size=4):
    return list(
        sequential.sequential_batches(
            ProcessIds() if dataset is None else dataset, object(), size, CPU, 0, workers=workers
        )
    )


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_batches_are_bit_identical_for_any_number_of_workers(workers, free_processes):
    local, prefetched = collect_batches(0), collect_batches(workers)
    assert [size for _, size in prefetched] == [4] * 10
    for ((local_rows, local_draws), _), ((rows, draws), _) in zip(local, prefetched, strict=True):
        assert torch.equal(local_rows[:, 0], rows[:, 0]) and torch.equal(local_draws, draws)
    pids = {int(pid) for (rows, _), _ in prefetched for pid in rows[:, 1]}
    assert len(pids) == 1 + min(workers, 9) and not any(psutil.pid_exists(pid) for pid in pids - {os.getpid()})


def test_fast_fetching_starts_no_process():
    assert {int(pid) for (rows, _), _ in collect_batches(2) for pid in rows[:, 1]} == {os.getpid()}


@pytest.mark.parametrize("samples", [0, 1, 4, 5])
def test_small_datasets_are_complete(samples, free_processes):
    assert sum(size for _, size in collect_batches(2, ProcessIds(samples))) == samples


def test_processes_end_when_evaluation_fails(free_processes):
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ZeroDivisionError) as caught:
        run(Failing(), Failing().model(), dataset=ProcessIds(), workers=2)
    assert {child.pid for child in psutil.Process().children()} == before
    assert caught.tb  # it references all frames of the evaluation


class Stuck(ProcessIds):
    def __getitem__(self, index):
        if index >= 20:
            time.sleep(600)
        return super().__getitem__(index)


def test_stuck_process_is_not_waited_for(free_processes, monkeypatch):
    # torch alone would wait this long for each process before ending it.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    started_at = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run(Failing(), Failing().model(), dataset=Stuck(), workers=1, micro_batch=3)
    assert time.monotonic() - started_at < 50


class Failing(Plain):
    def evaluate(self, model, batches):
        for number, _ in enumerate(batches):
            assert psutil.Process().children() or not number
            1 / (5 - number)


def history(*losses):
    return [{"epoch": number + 1, "metrics": {"loss": loss}} for number, loss in enumerate(losses)]


def test_best_entry_is_the_first_of_equal_epochs():
    assert best_entry(Plain(), history(3.0, 1.0, 2.0, 1.0))["epoch"] == 2
    assert best_entry(Plain(), []) is None


def test_best_metric_can_be_the_maximum():
    recipe = Plain()
    recipe.best = ("loss", "max")
    assert best_entry(recipe, history(1.0, 3.0, 2.0))["epoch"] == 2


def test_missing_deciding_metric_is_named():
    recipe = Plain()
    recipe.best = ("f1", "max")
    with pytest.raises(UsageError, match="'f1' is not a number or is missing; the metrics are: loss"):
        best_entry(recipe, history(1.0))


@pytest.mark.parametrize(
    ("losses", "exhausted"),
    [((1.0,), False), ((1.0, 2.0), False), ((1.0, 2.0, 2.0), True), ((3.0, 2.0, 1.0), False), ((), False)],
)
def test_patience_counts_epochs_since_the_best(losses, exhausted):
    recipe = Plain()
    recipe.patience = 2
    assert patience_exhausted(recipe, history(*losses)) is exhausted


def test_no_early_stopping_without_patience():
    assert not patience_exhausted(Plain(), history(1.0, *[2.0] * 100))


class Metrics(Plain):
    def __init__(self, **metrics):
        self.metrics = metrics

    def evaluate(self, model, batches):
        return self.metrics


def test_metrics_are_json():
    values = {"loss": torch.tensor(0.5), "nan": float("nan"), "count": torch.tensor(3), "table": {"a": [(-math.inf,)]}}
    metrics = run(Metrics(**values), Plain().model())
    assert metrics == {"loss": 0.5, "nan": "nan", "count": 3, "table": {"a": [["-inf"]]}}
    assert type(metrics["count"]) is int
    with pytest.raises(UsageError, match=r"the metric 'other' is .* of type object"):
        run(Metrics(other=object()), Plain().model())


def test_epoch_without_a_number_is_the_worst():
    for direction, worst in (("min", "inf"), ("max", "-inf")):
        recipe = type("Recipe", (), {"best": ("loss", direction)})()
        history = [{"epoch": i, "metrics": {"loss": loss}} for i, loss in enumerate(("nan", worst, 0.5))]
        assert best_entry(recipe, history) is history[2]
