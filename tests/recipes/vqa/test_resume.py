"""A resumed run ends with the same bits as an uninterrupted run, with each update in the correct stage."""

import pytest

from tests.recipes.vqa.teacher_data import make_row, write_data
from tests.sessions import final_bits, session

# 20 images: 16 train, in two updates an epoch. Of five epochs the first is ANSWER_FOCUS, the second FORMAT_LEARNING.
# The stops are within the first epoch, in the last update of the second, and in the third stage.
STOPS = (1, 3, 3)
STAGES = ["ANSWER_FOCUS"] * 2 + ["FORMAT_LEARNING"] * 2 + ["REASONING_QUALITY"] * 6


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder, [make_row(number, reasoning_weight=1.0 + number % 4) for number in range(20)])
    return {"size": "tiny", "data": str(folder), "epochs": 5, "effective_batch": 8, "beams": 2, "a_len": 24,
            "save_every_updates": 1}  # fmt: skip


class StageRecorder:
    """A recipe that records the stages of its losses."""

    def __init__(self, recipe, stages):
        self._recipe, self._stages = recipe, stages

    def __getattr__(self, name):
        return getattr(self._recipe, name)

    def loss(self, model, batch, stage):
        self._stages.append(stage.name)
        return self._recipe.loss(model, batch, stage)


@pytest.fixture(scope="module")
def uninterrupted(values, tmp_path_factory):
    """Return the final bits of an uninterrupted run."""
    run, stages = tmp_path_factory.mktemp("uninterrupted"), []
    outcome = session("vqa", run, values, wrap=lambda recipe: StageRecorder(recipe, stages))
    assert (outcome.status, outcome.update) == ("finished", 10)
    assert stages == STAGES
    return final_bits(run)


def test_run_paused_three_times_has_the_same_bits(values, uninterrupted, tmp_path):
    stages, updates = [], []
    for loss_number in STOPS:
        outcome = session(
            "vqa", tmp_path, values, stop="limit", at=loss_number, wrap=lambda recipe: StageRecorder(recipe, stages)
        )
        assert outcome.status == "paused"
        updates.append(outcome.update)
    assert updates == [1, 4, 7]
    assert session("vqa", tmp_path, values, wrap=lambda recipe: StageRecorder(recipe, stages)).status == "finished"
    assert stages == STAGES
    assert final_bits(tmp_path) == uninterrupted


def test_the_microbatch_does_not_change_the_stages(values, tmp_path):
    """The bits and the dropout masks differ; the data of the updates and their stages are the same."""
    stages = []
    session("vqa", tmp_path, values | {"micro_batch": 3}, wrap=lambda recipe: StageRecorder(recipe, stages))
    assert stages == [stage for stage in STAGES for _ in range(3)]


def test_bits_depend_on_the_seed(values, uninterrupted, tmp_path):
    """The comparison of bits can fail."""
    session("vqa", tmp_path, values | {"seed": 43})
    assert final_bits(tmp_path)["model"] != uninterrupted["model"]


def test_synthetic_data_are_noted(tmp_path):
    from shoestring.training.monitor.events import read

    session("vqa", tmp_path, {"size": "tiny", "epochs": 1, "subset": 16, "effective_batch": 8, "beams": 1, "a_len": 16},
            stop="limit", at=1)  # fmt: skip
    notes = [event["message"] for event in read(tmp_path / "events.jsonl") if event["event"] == "note"]
    assert any("synthetic questions over real digits" in note for note in notes)
