import dataclasses

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings


def test_settings_round_trip_through_json():
    settings = Settings(micro_batch=7, precision="fp16", save_every_seconds=30.0)
    assert Settings.from_json(settings.json()) == settings


@pytest.mark.parametrize("word", ["auto", "none", None])
def test_what_is_left_to_the_plan_is_called_auto(word):
    assert Settings.from_json({"streamed_blocks": word, "precision": word}) == Settings()
    with pytest.raises(UsageError) as error:
        Settings.from_json({"micro_batch": "many", "precision": "fp8", "keep_light": word})
    micro_batch, precision, keep_light = error.value.problems
    assert micro_batch == "micro_batch=many: expected an integer or auto"
    assert precision == "precision=fp8: expected one of fp32, fp16, bf16 or auto"
    assert keep_light == f"keep_light={word}: expected an integer"


def test_unknown_setting_is_refused():
    with pytest.raises(UsageError, match="unknown"):
        Settings.from_json({"microbatch": 3})


def test_all_invalid_values_are_reported():
    with pytest.raises(UsageError) as error:
        Settings(micro_batch=0, keep_checkpoints=0, save_every_updates=0, stage="20")
    assert len(error.value.problems) == 4 and "stage=20: expected no or yes" in error.value.problems[-1]
    with pytest.raises(UsageError) as error:
        Settings(save="none", save_epochs=1)
    assert "save_epochs=1: with save=none" in error.value.problems[0]


@pytest.mark.parametrize("conflict", [{"checkpointing": "full"}, {"offload": "optimizer"}])
def test_conflicts_with_cuda_graphs_are_refused(conflict):
    with pytest.raises(UsageError) as error:
        Settings(compile="graphs", **conflict)
    ((name, value),) = conflict.items()
    assert f"compile=graphs: {name}={value}" in error.value.problems[0]
    assert Settings(compile="graphs", checkpointing="no").compile == "graphs"


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().micro_batch = 3
