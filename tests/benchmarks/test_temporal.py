from types import SimpleNamespace

import pytest
from benchmarks.temporal import compiled, walk_forward

from shoestring.recipes.temporal import Options, Temporal


def fold(accuracy: float) -> dict[str, float]:
    return {"accuracy": accuracy, "hindsight": 0.6, "foresight": 0.5, "macro_f1": 0.3}


def test_folds_have_a_mean_and_a_deviation() -> None:
    found = walk_forward.summary([fold(0.4), fold(0.6)])
    assert found["accuracy"] == {"mean": pytest.approx(0.5), "deviation": pytest.approx(0.02**0.5)}
    assert found["hindsight"] == {"mean": 0.6, "deviation": 0.0}
    said = walk_forward.line({"architecture": "mlp", "size": "tiny", "seconds": 3.2, **found})
    assert "accuracy 0.500 +- 0.141  hindsight 0.600 +- 0.000" in said
    assert walk_forward.summary([fold(0.4)])["accuracy"]["deviation"] == 0.0


def test_a_fold_is_a_run_beside_both_majorities(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(recipe: str, plan: object, **options: object) -> SimpleNamespace:
        asked.append((recipe, options["fold"]))
        scores = {"accuracy": 0.4, "accuracy_error": 0.1, "majority_accuracy": 0.5, "macro_f1": 0.3}
        return SimpleNamespace(status="finished", update=7, metrics={"test": scores})

    monkeypatch.setattr(walk_forward.shoestring, "train", train)
    found = walk_forward.walked("2/5", object(), {"size": "tiny"})
    assert asked == [("temporal", "2/5")]
    assert (found["train_samples"], found["test_samples"], found["hindsight"]) == (258, 115, 0.5)
    truth = Temporal(Options(fold="2/5")).data()["test"].labels
    assert found["foresight"] == pytest.approx(float((truth == 2).double().mean()))  # prices rose until then


def test_a_run_that_did_not_finish_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = SimpleNamespace(status="paused", reason="SIGTERM", metrics={})
    monkeypatch.setattr(walk_forward.shoestring, "train", lambda *_, **__: paused)
    with pytest.raises(SystemExit, match="SIGTERM"):
        walk_forward.walked("1/5", object(), {})


def test_the_updates_that_are_timed_are_updates() -> None:
    update = compiled.update_of("mlp", "tiny", 16, "no")
    first, *_, last = (compiled.timed(update)[1] for _ in range(30))
    assert last < first
