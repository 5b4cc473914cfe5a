import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.errors import QuestionError
from shoestring.recipe import live
from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop
from shoestring.train.evaluation import best_entry, evaluate, out_of_patience
from shoestring.train.precision import arithmetic

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


def run(recipe, model, micro_batch=4, limit=None):
    stop = Stop(deadline=Deadline(limit), signals=StopSignals())
    return evaluate(live(recipe), model, arithmetic("fp32", CPU), DATA, micro_batch=micro_batch, device=CPU, stop=stop)


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
    with pytest.raises(QuestionError, match="'f1' is no number among the metrics loss"):
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
