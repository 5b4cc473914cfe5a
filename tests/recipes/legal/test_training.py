"""The recipe learns, and a paused run ends in the same bits as an uninterrupted one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import final_bits, session
from tests.slow import slow_except

CLASSIFIER = {"size": "tiny", "epochs": 3, "effective_batch": 16}
JUDGMENTS = {"architecture": "hier_bilstm_crf", "size": "tiny", "epochs": 12, "effective_batch": 8}
ARCHITECTURES = {"classifier": CLASSIFIER, "hier_bilstm_crf": JUDGMENTS}


@pytest.mark.slow
@pytest.mark.parametrize("values", list(ARCHITECTURES.values()), ids=list(ARCHITECTURES))
def test_trained_networks_beat_the_majority_baseline(values: dict[str, Any], tmp_path: Path) -> None:
    test = session("legal", tmp_path, values).metrics["test"]
    assert test["majority_weighted_f1"] < 0.15
    assert test["weighted_f1"] > 0.8
    assert test["macro_f1"] > 0.8


@pytest.mark.slow
def test_single_sentences_are_less_accurate(tmp_path: Path) -> None:
    """A fifth of the synthetic sentences are neutral, so their role depends on the sentence before."""
    assert session("legal", tmp_path, CLASSIFIER | {"context": "single"}).metrics["test"]["accuracy"] < 0.9


@pytest.mark.parametrize("values", slow_except(ARCHITECTURES, "hier_bilstm_crf"))
def test_a_paused_run_ends_in_the_same_bits(values: dict[str, Any], tmp_path: Path) -> None:
    # An epoch has 10 updates of the classifier or 4 of the other; some have microbatches of different sizes.
    values = values | {"epochs": 3, "subset": 158 if values is CLASSIFIER else 32, "micro_batch": 3, "patience": 5}
    uninterrupted, paused = tmp_path / "uninterrupted", tmp_path / "paused"
    assert session("legal", uninterrupted, values).status == "finished"
    for stop, loss_number in (("SIGTERM", 4), ("limit", 7)):
        assert session("legal", paused, values, stop=stop, at=loss_number).status == "paused"
    assert session("legal", paused, values).status == "finished"
    assert final_bits(paused) == final_bits(uninterrupted)


def test_notes_are_events_of_the_run(tmp_path: Path) -> None:
    session("legal", tmp_path, CLASSIFIER | {"epochs": 1, "subset": 32})
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any("synthetic" in note for note in notes)
    assert any("train 64" in note for note in notes)
