"""`architecture=all`: the three networks are trained one after another and compared."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import shoestring
from shoestring.base.errors import UsageError
from shoestring.recipe.losses import clip_norm, losses_by_stage
from shoestring.recipe.parts import Parts
from shoestring_recipes.temporal import MEMBERS, Options, Temporal
from shoestring_recipes.temporal.alternatives import best_by_architecture, phase_at
from tests.sessions import final_bits, session

from .market import export_market

VALUES = {"size": "tiny", "architecture": "all", "epochs": 2, "effective_batch": 128, "micro_batch": 128}
VALUES |= {"precision": "fp32", "checkpointing": "no"}  # so that the plan has little to choose


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_market(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def run(market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "all"
    shoestring.train("temporal", run=folder, data=market, save_every_updates=1, **VALUES)
    return folder


def evaluations(run: Path) -> list[dict]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == "evaluation"]


def test_each_stage_trains_one_network() -> None:
    torch.manual_seed(0)
    recipe = Temporal(Options(size="tiny", architecture="all"))
    model = recipe.model()
    batch = torch.randn(8, 20, 29), torch.randint(3, (8,))
    for stage in recipe.stages:
        model.zero_grad()
        recipe.loss(model, batch, stage=stage).backward()
        with_gradient = {name.split(".")[1] for name, value in model.named_parameters() if value.grad is not None}
        assert with_gradient == {stage} and model.name == stage
        model.eval()
        assert torch.equal(model(batch[0]), model.members[stage](batch[0]))
        model.train()


def test_phases_have_whole_epochs() -> None:
    assert [phase_at(update, 5, 45, 3) for update in (0, 14, 15, 44)] == [
        (0, 0, 15), (0, 14, 15), (1, 0, 15), (2, 14, 15)
    ]  # fmt: skip
    assert [phase_at(update, 5, 32, 3)[::2] for update in (0, 14, 15, 31)] == [(0, 15), (0, 15), (1, 15), (2, 2)]


def test_rates_begin_again_with_each_network() -> None:
    recipe, one = Temporal(Options(architecture="all")), Temporal(Options(architecture="lstm"))
    factors = [recipe.schedule(update, 4, 3 * 200) for update in range(600)]
    assert factors == 3 * [one.schedule(update, 4, 200) for update in range(200)]
    rates = [group["lr"] for group in recipe.optimizer(recipe.model()).param_groups]
    assert rates == [member.learning_rate for member in MEMBERS.values()]


def test_each_network_has_its_own_limit_of_the_gradient() -> None:
    recipe = Temporal(Options(architecture="all"))
    limits = [clip_norm(Parts.from_recipe(recipe), loss) for loss in losses_by_stage(recipe)]
    assert limits == [member.clip_norm for member in MEMBERS.values()]
    with pytest.raises(UsageError, match="no entry for the stage None"):
        clip_norm(Parts.from_recipe(recipe), recipe.loss)


@pytest.mark.slow
def test_the_memory_is_that_of_the_largest_stage() -> None:
    def parts(architecture: str) -> dict[str, int]:
        values = {"architecture": architecture, "micro_batch": 256, "precision": "fp16"}
        estimate = shoestring.estimate("temporal", on="t4", **values).json()
        return {part["name"]: part["bytes"] for part in estimate["parts"]}

    transformer, together = parts("transformer"), parts("all")
    assert together["activations"] == pytest.approx(transformer["activations"], rel=0.1)
    count = 625_726 + 608_003 + 26_381
    assert together["weights"] == pytest.approx(4 * count, rel=0.05)
    assert together["optimizer states"] == pytest.approx(2 * 4 * count, rel=0.05)


def test_all_are_compared_and_the_best_is_used(run: Path) -> None:
    entries = evaluations(run)
    validation = [entry["metrics"] for entry in entries if entry["part"] == "validation"]
    assert [metrics["architecture"] for metrics in validation] == [name for name in MEMBERS for _ in range(2)]
    final = json.loads((run / "state.json").read_text())["metrics"]
    comparison = final["validation"]["comparison"]
    assert list(comparison) == list(MEMBERS)
    losses = {name: min(m["loss"] for m in validation if m["architecture"] == name) for name in MEMBERS}
    assert {name: row["loss"] for name, row in comparison.items()} == losses
    best = min(losses, key=losses.__getitem__)
    assert final["validation"]["architecture"] == final["test"]["architecture"] == best
    assert final["validation"]["loss"] == losses[best]


def test_the_first_network_has_the_bits_of_a_run_of_its_own(run: Path, market: Path, tmp_path: Path) -> None:
    values = VALUES | {"architecture": "lstm", "data": market, "save_every_updates": 1}
    assert session("temporal", tmp_path / "lstm", values).status == "finished"
    losses = [
        [entry["metrics"]["loss"] for entry in evaluations(folder) if entry["part"] == "validation"][:2]
        for folder in (run, tmp_path / "lstm")
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_killed_run_has_the_same_bits(market: Path, tmp_path: Path) -> None:
    values = VALUES | {"data": str(market), "save_every_updates": 2}
    assert session("temporal", tmp_path / "straight", values).status == "finished"
    killed = {"recipe": "temporal", "run": str(tmp_path / "killed"), "values": values, "stop": "SIGKILL", "at": 30}
    command = [sys.executable, "-m", "tests.sessions", json.dumps(killed)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -signal.SIGKILL
    for loss_count in (3, 12):  # within the second network and the third one
        assert session("temporal", tmp_path / "killed", values, stop="limit", at=loss_count).status == "paused"
    assert session("temporal", tmp_path / "killed", values).status == "finished"
    assert final_bits(tmp_path / "killed") == final_bits(tmp_path / "straight")


def test_evaluate_predict_and_report(run: Path, market: Path, tmp_path: Path) -> None:
    final = json.loads((run / "state.json").read_text())["metrics"]
    assert shoestring.evaluate(run).metrics["test"]["loss"] == pytest.approx(final["test"]["loss"])
    rows = shoestring.load(run).predict(market)
    assert {row["architecture"] for row in rows} == {final["validation"]["architecture"]}
    assert {row["input"]["symbol"] for row in rows} == {"EURUSD", "GBPUSD.a"}
    page = Path(shoestring.report(run)).read_text()
    assert "Compared on validation data" in page and "transformer" in page.lower()


def test_the_best_epoch_of_each_network() -> None:
    history = [
        {"epoch": epoch, "metrics": {"loss": loss, "architecture": name, "classes": {}}}
        for epoch, (name, loss) in enumerate([("lstm", 2.0), ("lstm", 1.0), ("mlp", 3.0), ("mlp", 4.0)], start=1)
    ]
    assert best_by_architecture(history) == {"lstm": {"epoch": 2, "loss": 1.0}, "mlp": {"epoch": 3, "loss": 3.0}}


def test_the_best_weights_name_their_network(run: Path) -> None:
    weights = load_file(run / "best" / "model.safetensors")
    final = json.loads((run / "state.json").read_text())["metrics"]
    assert [*MEMBERS][int(weights["current"])] == final["validation"]["architecture"]


def test_the_network_in_use_is_exported() -> None:
    recipe = Temporal(Options(size="tiny", architecture="all"))
    model = recipe.model()
    model.train_member("mlp")
    assert recipe.onnx(model).module is model.members["mlp"]
