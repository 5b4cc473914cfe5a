from types import SimpleNamespace

import pytest
from benchmarks.temporal import compiled, walk_forward

from shoestring_recipes.temporal import Options, Temporal


def fold(accuracy: float) -> dict[str, float]:
    return {"accuracy": accuracy, "hindsight": 0.6, "foresight": 0.5, "macro_f1": 0.3}


def test_summary_has_mean_and_deviation() -> None:
    summary = walk_forward.summary([fold(0.4), fold(0.6)])
    assert summary["accuracy"] == {"mean": pytest.approx(0.5), "deviation": pytest.approx(0.02**0.5)}
    assert summary["hindsight"] == {"mean": 0.6, "deviation": 0.0}
    line = walk_forward.format_row({"architecture": "mlp", "size": "tiny", "seconds": 3.2, **summary})
    assert "accuracy 0.500 +- 0.141  hindsight 0.600 +- 0.000" in line
    assert walk_forward.summary([fold(0.4)])["accuracy"]["deviation"] == 0.0


def test_fold_is_a_run_with_both_majority_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def train(recipe: str, plan: object, **options: object) -> SimpleNamespace:
        requests.append((recipe, options["fold"]))
        scores = {"accuracy": 0.4, "accuracy_error": 0.1, "majority_accuracy": 0.5, "macro_f1": 0.3}
        return SimpleNamespace(status="finished", update=7, metrics={"test": scores})

    monkeypatch.setattr(walk_forward.shoestring, "train", train)
    result = walk_forward.run_fold("2/5", object(), {"size": "tiny"})
    assert requests == [("temporal", "2/5")]
    assert (result["train_samples"], result["test_samples"], result["hindsight"]) == (258, 115, 0.5)
    labels = Temporal(Options(fold="2/5")).data()["test"].labels
    assert result["foresight"] == pytest.approx(float((labels == 2).double().mean()))  # prices rose until then


def test_unfinished_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = SimpleNamespace(status="paused", reason="SIGTERM", metrics={})
    monkeypatch.setattr(walk_forward.shoestring, "train", lambda *_, **__: paused)
    with pytest.raises(SystemExit, match="SIGTERM"):
        walk_forward.run_fold("1/5", object(), {})


def test_timed_updates_reduce_the_loss() -> None:
    update = compiled.build_update("mlp", "tiny", 16, "no")
    first, *_, last = (compiled.time_update(update)[1] for _ in range(30))
    assert last < first
