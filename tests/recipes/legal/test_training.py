"""It learns, and a run that was paused ends in the bits of one that was not."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import final_bits, session

CLASSIFIER = {"size": "tiny", "epochs": 3, "effective_batch": 16}
JUDGMENTS = {"architecture": "hier_bilstm_crf", "size": "tiny", "epochs": 12, "effective_batch": 8}
ARCHITECTURES = pytest.mark.parametrize("values", [CLASSIFIER, JUDGMENTS], ids=["classifier", "hier_bilstm_crf"])


@ARCHITECTURES
def test_it_learns_what_the_most_frequent_role_does_not_tell(values: dict[str, Any], tmp_path: Path) -> None:
    test = session("legal", tmp_path, values).metrics["test"]
    assert test["majority_weighted_f1"] < 0.15
    assert test["weighted_f1"] > 0.8
    assert test["macro_f1"] > 0.8


def test_the_sentence_alone_does_not_tell_all(tmp_path: Path) -> None:
    """A fifth of the synthetic sentences could have any role but for the one before them; see the test above."""
    assert session("legal", tmp_path, CLASSIFIER | {"context": "single"}).metrics["test"]["accuracy"] < 0.9


@ARCHITECTURES
def test_a_paused_run_ends_in_the_same_bits(values: dict[str, Any], tmp_path: Path) -> None:
    # 10 updates an epoch of the one and 4 of the other; some are in microbatches of different sizes.
    values = values | {"epochs": 3, "subset": 158 if values is CLASSIFIER else 32, "micro_batch": 3, "patience": 5}
    run, paused = tmp_path / "straight", tmp_path / "paused"
    assert session("legal", run, values).status == "finished"
    for stop, at in (("SIGTERM", 4), ("limit", 7)):
        assert session("legal", paused, values, stop=stop, at=at).status == "paused"
    assert session("legal", paused, values).status == "finished"
    assert final_bits(paused) == final_bits(run)


def test_the_notes_are_in_the_runs_events(tmp_path: Path) -> None:
    session("legal", tmp_path, CLASSIFIER | {"epochs": 1, "subset": 32})
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any("synthetic" in note for note in notes)
    assert any("train 64" in note for note in notes)
