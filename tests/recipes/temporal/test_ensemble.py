import pytest
import torch
from torch import nn

from shoestring.recipe.contract import build_optimizer
from shoestring.recipes.temporal import Options, Temporal
from shoestring.recipes.temporal.architectures import MEMBERS
from shoestring.recipes.temporal.ensemble import Ensemble


class Says(nn.Module):
    """A member with one answer, whatever it is asked."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def made(**chosen: object) -> tuple[Temporal, Ensemble]:
    torch.manual_seed(0)
    recipe = Temporal(Options(architecture="ensemble", size="tiny", **chosen))
    model = recipe.model()
    assert isinstance(model, Ensemble)
    return recipe, model


def test_its_members_are_the_networks_and_every_parameter_has_one_rate() -> None:
    recipe, model = made()
    assert list(model.members) == list(MEMBERS)
    groups = recipe.optimizer(model).param_groups
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(map(id, model.parameters()))
    for group, name in zip(groups, MEMBERS, strict=False):
        assert list(map(id, group["params"])) == list(map(id, model.members[name].parameters()))
    assert {group["lr"] for group in Temporal(Options(learning_rate=0.1)).optimizer(model).param_groups} == {0.1}


def test_it_is_a_convex_combination_of_what_its_members_say() -> None:
    _, model = made()
    model.eval()
    x = torch.randn(64, 20, 29)
    with torch.no_grad():
        weights = model.log_weights(x).exp()
        members = torch.stack([member(x).softmax(-1) for member in model.members.values()], dim=1)
        said = model(x).exp()
    assert (weights > 0).all() and weights.std(dim=0).min() > 0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(64))
    torch.testing.assert_close(said, (weights[..., None] * members).sum(dim=1))
    torch.testing.assert_close(said.sum(dim=1), torch.ones(64))


def test_probabilities_of_almost_nothing_stay_finite() -> None:
    model = Ensemble({"a": Says(200.0, 0, -200), "b": Says(200.0, 0, -200)}, 2, widths=(2, 2))
    with torch.no_grad():
        model.believed.copy_(torch.tensor([[300.0, -300], [300, -300]]))
    said = model(torch.full((1, 1, 2), 1e4))
    said[0, 2].backward()
    assert said.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())


def test_it_learns_whom_to_believe_in_which_regime() -> None:
    """Two members that are right where the first feature is positive, and where it is negative, respectively."""
    torch.manual_seed(0)
    x = torch.randn(256, 3, 4)
    truth = (x[:, -1, 0] > 0).long()
    model = Ensemble({"down": Says(3.0, -3.0), "up": Says(-3.0, 3.0)}, 4, widths=(8, 4))
    for member in model.members.parameters():
        member.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.nll_loss(model(x), truth).backward()
        optimizer.step()
    weights = model.log_weights(x).exp()
    assert weights[truth == 0, 0].mean() > 0.9 and weights[truth == 1, 1].mean() > 0.9


def test_regimes_differ_from_the_beginning() -> None:
    recipe, model = made()
    recipe.loss(model, (torch.randn(64, 20, 29), torch.randint(3, (64,)))).backward()
    assert all(parameter.grad.abs().max() > 1e-5 for parameter in model.regime.parameters())


def test_all_members_learn_together_and_none_is_left_out() -> None:
    recipe, model = made(dropout=0.0)
    torch.manual_seed(1)
    x = torch.randn(128, 20, 29)
    y = (x[:, -1, 0] > -0.4).long() + (x[:, -1, 0] > 0.4).long()
    optimizer = build_optimizer(recipe, model)
    for group in optimizer.param_groups:
        group["lr"] *= 10
    for _ in range(40):
        optimizer.zero_grad()
        recipe.loss(model, (x, y)).backward()
        optimizer.step()
    with torch.no_grad():
        alone = {name: float(recipe._cross_entropy(member(x), y, "mean")) for name, member in model.members.items()}
    assert max(alone.values()) < 1.0, alone


def test_evaluation_says_how_much_each_member_counted() -> None:
    recipe, model = made()
    x, y = recipe.batch(4)
    x = torch.randn_like(x)
    with torch.no_grad():
        found = recipe.evaluate(model.eval(), [(x[:1], y[:1]), (x[1:], y[1:])])
        mean = model.log_weights(x).exp().mean(dim=0)
        assert "weights" not in Temporal().evaluate(Temporal().model().eval(), [(x, y)])
    assert list(found["weights"]) == list(MEMBERS)
    assert list(found["weights"].values()) == pytest.approx(mean.tolist())
