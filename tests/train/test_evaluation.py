import os
import time

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.data import in_order
from shoestring.engine.precision import mixed_precision
from shoestring.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop
from shoestring.train.evaluation import best_entry, evaluate, out_of_patience

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
    return evaluate(find(recipe), model, fp32, dataset, micro_batch=micro_batch, device=CPU, stop=stop, workers=workers)


def test_without_metrics_of_its_own_it_is_the_mean_loss_in_evaluation_mode():
    model = Plain().model()
    with torch.no_grad():
        expected = model.eval()(DATA.tensors[0]).square().mean()
    model.train()
    assert run(Plain(), model)["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert run(Plain(), model, micro_batch=10)["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_each_modules_mode_comes_back_and_nothing_is_learnt():
    model = Plain().model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(Plain(), model)
    assert model[1].training
    assert not model[2].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_polls_the_clock():
    model = Plain().model()
    with pytest.raises(SessionOver):
        run(Plain(), model, limit=0.5)
    assert model.training


class Fetched:
    """Samples that say which process fetched them, and draw."""

    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()]), torch.rand(1)


@pytest.fixture
def free_processes(monkeypatch):
    """To start one costs nothing, so that it always pays."""
    monkeypatch.setattr(in_order, "_START_SECONDS", 0.0)


def gone_through(workers, dataset=None, size=4):
    return list(in_order.in_order(Fetched() if dataset is None else dataset, object(), size, CPU, 0, workers=workers))


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_the_batches_are_the_same_bits_whatever_the_number_of_workers(workers, free_processes):
    here, ahead = gone_through(0), gone_through(workers)
    assert [size for _, size in ahead] == [4] * 10
    for ((known, drawn), _), ((same, drawn_too), _) in zip(here, ahead, strict=True):
        assert torch.equal(known[:, 0], same[:, 0]) and torch.equal(drawn, drawn_too)
    pids = {int(pid) for (rows, _), _ in ahead for pid in rows[:, 1]}
    assert len(pids) == 1 + min(workers, 9) and not any(psutil.pid_exists(pid) for pid in pids - {os.getpid()})


def test_no_process_is_started_for_what_is_fetched_as_soon():
    assert {int(pid) for (rows, _), _ in gone_through(2) for pid in rows[:, 1]} == {os.getpid()}


@pytest.mark.parametrize("samples", [0, 1, 4, 5])
def test_few_samples_are_all_there(samples, free_processes):
    assert sum(size for _, size in gone_through(2, Fetched(samples))) == samples


def test_stopped_in_the_middle_no_process_stays(free_processes):
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ZeroDivisionError) as caught:
        run(Failing(), Failing().model(), dataset=Fetched(), workers=2)
    assert {child.pid for child in psutil.Process().children()} == before
    assert caught.tb  # which holds all that was there


class Stuck(Fetched):
    def __getitem__(self, index):
        if index >= 20:
            time.sleep(600)
        return super().__getitem__(index)


def test_nor_is_a_process_waited_for_that_is_in_the_middle_of_a_sample(free_processes, monkeypatch):
    # torch alone would wait so long for each process before it ends it.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run(Failing(), Failing().model(), dataset=Stuck(), workers=1, micro_batch=3)
    assert time.monotonic() - began < 50


class Failing(Plain):
    def evaluate(self, model, batches):
        for number, _ in enumerate(batches):
            assert psutil.Process().children() or not number
            1 / (5 - number)


def history(*losses):
    return [{"epoch": number + 1, "metrics": {"loss": loss}} for number, loss in enumerate(losses)]


def test_the_first_of_the_best_epochs_is_the_best():
    assert best_entry(Plain(), history(3.0, 1.0, 2.0, 1.0))["epoch"] == 2
    assert best_entry(Plain(), []) is None


def test_more_can_be_better():
    recipe = Plain()
    recipe.best = ("loss", "max")
    assert best_entry(recipe, history(1.0, 3.0, 2.0))["epoch"] == 2


def test_a_deciding_metric_that_is_not_there_is_named():
    recipe = Plain()
    recipe.best = ("f1", "max")
    with pytest.raises(UsageError, match="'f1' is no number among the metrics loss"):
        best_entry(recipe, history(1.0))


@pytest.mark.parametrize(
    ("losses", "over"),
    [((1.0,), False), ((1.0, 2.0), False), ((1.0, 2.0, 2.0), True), ((3.0, 2.0, 1.0), False), ((), False)],
)
def test_patience_counts_epochs_since_the_best(losses, over):
    recipe = Plain()
    recipe.patience = 2
    assert out_of_patience(recipe, history(*losses)) is over


def test_without_patience_there_is_no_end():
    assert not out_of_patience(Plain(), history(1.0, *[2.0] * 100))
