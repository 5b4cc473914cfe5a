import dataclasses

import pytest

from shoestring.errors import UsageError
from shoestring.settings import Settings


def test_settings_survive_json():
    settings = Settings(micro_batch=7, precision="fp16", save_every_seconds=30.0)
    assert Settings.from_json(settings.json()) == settings


def test_settings_of_another_version_are_named():
    with pytest.raises(UsageError, match="unknown"):
        Settings.from_json({"microbatch": 3})


def test_what_cannot_be_is_refused_all_at_once():
    with pytest.raises(UsageError) as caught:
        Settings(micro_batch=0, keep_checkpoints=1, save_every_updates=0, stage="20")
    assert len(caught.value.problems) == 4 and "stage=20: expected no or yes" in caught.value.problems[-1]


@pytest.mark.parametrize("unlike", [{"checkpointing": "full"}, {"offload": "optimizer"}])
def test_what_moves_or_asks_in_a_microbatch_is_not_captured(unlike):
    with pytest.raises(UsageError) as caught:
        Settings(compile="graphs", **unlike)
    ((name, value),) = unlike.items()
    assert f"compile=graphs: {name}={value}" in caught.value.problems[0]
    assert Settings(compile="graphs", checkpointing="no").compile == "graphs"


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().micro_batch = 3
