import pytest
import torch
from torch import nn

from shoestring.recipe.contract import build_optimizer
from shoestring_recipes.temporal import Options, Temporal
from shoestring_recipes.temporal.architectures import MEMBERS
from shoestring_recipes.temporal.ensemble import Ensemble


class ConstantMember(nn.Module):
    """A member with the same logits for every input."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def build_ensemble(**options: object) -> tuple[Temporal, Ensemble]:
    torch.manual_seed(0)
    recipe = Temporal(Options(architecture="ensemble", size="tiny", **options))
    model = recipe.model()
    assert isinstance(model, Ensemble)
    return recipe, model


def test_every_parameter_is_in_one_group() -> None:
    recipe, model = build_ensemble()
    assert list(model.members) == list(MEMBERS)
    groups = recipe.optimizer(model).param_groups
    grouped_ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped_ids) == sorted(map(id, model.parameters()))
    for group, name in zip(groups, MEMBERS, strict=False):
        assert list(map(id, group["params"])) == list(map(id, model.members[name].parameters()))
    assert {group["lr"] for group in Temporal(Options(learning_rate=0.1)).optimizer(model).param_groups} == {0.1}


def test_output_is_a_convex_combination_of_the_members() -> None:
    _, model = build_ensemble()
    model.eval()
    x = torch.randn(64, 20, 29)
    with torch.no_grad():
        weights = model.log_weights(x).exp()
        members = torch.stack([member(x).softmax(-1) for member in model.members.values()], dim=1)
        probabilities = model(x).exp()
    assert (weights > 0).all() and weights.std(dim=0).min() > 0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(64))
    torch.testing.assert_close(probabilities, (weights[..., None] * members).sum(dim=1))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(64))


def test_tiny_probabilities_stay_finite() -> None:
    model = Ensemble({"a": ConstantMember(200.0, 0, -200), "b": ConstantMember(200.0, 0, -200)}, 2, widths=(2, 2))
    with torch.no_grad():
        model.believed.copy_(torch.tensor([[300.0, -300], [300, -300]]))
    log_probabilities = model(torch.full((1, 1, 2), 1e4))
    log_probabilities[0, 2].backward()
    assert log_probabilities.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_weights_of_the_regimes_are_learned() -> None:
    """One member is right if the first feature is negative, the other if it is positive."""
    torch.manual_seed(0)
    x = torch.randn(256, 3, 4)
    truth = (x[:, -1, 0] > 0).long()
    model = Ensemble({"down": ConstantMember(3.0, -3.0), "up": ConstantMember(-3.0, 3.0)}, 4, widths=(8, 4))
    for parameter in model.members.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.nll_loss(model(x), truth).backward()
        optimizer.step()
    weights = model.log_weights(x).exp()
    assert weights[truth == 0, 0].mean() > 0.9 and weights[truth == 1, 1].mean() > 0.9


def test_regimes_get_gradients_from_the_start() -> None:
    recipe, model = build_ensemble()
    recipe.loss(model, (torch.randn(64, 20, 29), torch.randint(3, (64,)))).backward()
    assert all(parameter.grad.abs().max() > 1e-5 for parameter in model.regime.parameters())


def test_all_members_learn_jointly() -> None:
    recipe, model = build_ensemble(dropout=0.0)
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
        member_losses = {
            name: float(recipe._cross_entropy(member(x), y, "mean")) for name, member in model.members.items()
        }
    assert max(member_losses.values()) < 1.0, member_losses


def test_evaluation_reports_the_mean_weights() -> None:
    recipe, model = build_ensemble()
    x, y = recipe.batch(4)
    x = torch.randn_like(x)
    with torch.no_grad():
        metrics = recipe.evaluate(model.eval(), [(x[:1], y[:1]), (x[1:], y[1:])])
        mean = model.log_weights(x).exp().mean(dim=0)
        assert "weights" not in Temporal().evaluate(Temporal().model().eval(), [(x, y)])
    assert list(metrics["weights"]) == list(MEMBERS)
    assert list(metrics["weights"].values()) == pytest.approx(mean.tolist())
