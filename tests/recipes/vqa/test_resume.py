"""A run that was stopped ends in the bits of one that was not, each update in its own stage."""

import pytest

from tests.recipes.vqa.taught import row, written
from tests.sessions import final_bits, session

# 20 images: 16 train, in two updates an epoch. Of five epochs the first is ANSWER_FOCUS, the second FORMAT_LEARNING.
# Stopped within the first epoch, in the last update of the second, and in the third stage.
STOPS = (1, 3, 3)
STAGES = ["ANSWER_FOCUS"] * 2 + ["FORMAT_LEARNING"] * 2 + ["REASONING_QUALITY"] * 6


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    written(folder, [row(number, reasoning_weight=1.0 + number % 4) for number in range(20)])
    return {"size": "tiny", "data": str(folder), "epochs": 5, "effective_batch": 8, "beams": 2, "a_len": 24,
            "save_every_updates": 1}  # fmt: skip


class Seen:
    """A recipe that writes down the stages of its losses."""

    def __init__(self, recipe, stages):
        self._recipe, self._stages = recipe, stages

    def __getattr__(self, name):
        return getattr(self._recipe, name)

    def loss(self, model, batch, stage):
        self._stages.append(stage.name)
        return self._recipe.loss(model, batch, stage)


@pytest.fixture(scope="module")
def straight(values, tmp_path_factory):
    """The bits of a run that was never stopped."""
    run, stages = tmp_path_factory.mktemp("straight"), []
    outcome = session("vqa", run, values, wrap=lambda recipe: Seen(recipe, stages))
    assert (outcome.status, outcome.update) == ("finished", 10)
    assert stages == STAGES
    return final_bits(run)


def test_paused_three_times(values, straight, tmp_path):
    stages, reached = [], []
    for at in STOPS:
        outcome = session("vqa", tmp_path, values, stop="limit", at=at, wrap=lambda recipe: Seen(recipe, stages))
        assert outcome.status == "paused"
        reached.append(outcome.update)
    assert reached == [1, 4, 7]
    assert session("vqa", tmp_path, values, wrap=lambda recipe: Seen(recipe, stages)).status == "finished"
    assert stages == STAGES
    assert final_bits(tmp_path) == straight


def test_the_microbatch_changes_nothing_but_rounding(values, tmp_path):
    """Not in bits, nor where dropout draws; but the data of the updates and their stages are the same."""
    stages = []
    session("vqa", tmp_path, values | {"micro_batch": 3}, wrap=lambda recipe: Seen(recipe, stages))
    assert stages == [stage for stage in STAGES for _ in range(3)]


def test_the_bits_do_depend_on_the_seed(values, straight, tmp_path):
    """The comparison can fail."""
    session("vqa", tmp_path, values | {"seed": 43})
    assert final_bits(tmp_path)["model"] != straight["model"]


def test_what_is_synthetic_or_random_is_noted(tmp_path):
    from shoestring.monitor.events import read

    session("vqa", tmp_path, {"size": "tiny", "epochs": 1, "subset": 16, "effective_batch": 8, "beams": 1, "a_len": 16},
            stop="limit", at=1)  # fmt: skip
    notes = [event["message"] for event in read(tmp_path / "events.jsonl") if event["event"] == "note"]
    assert any("synthetic questions over real digits" in note for note in notes)
