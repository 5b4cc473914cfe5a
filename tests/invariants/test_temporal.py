"""A resumed ensemble has the same bits as one that was never stopped."""

from tests.sessions import final_bits, session

VALUES = {"size": "tiny", "epochs": 2, "effective_batch": 128, "micro_batch": 128, "save_every_updates": 2}


def test_paused_ensemble_has_the_same_bits(tmp_path):
    values = VALUES | {"architecture": "ensemble"}
    assert session("temporal", tmp_path / "straight", values).status == "finished"
    for loss_count in (2, 4):
        assert session("temporal", tmp_path / "paused", values, stop="limit", at=loss_count).status == "paused"
    assert session("temporal", tmp_path / "paused", values).status == "finished"
    assert final_bits(tmp_path / "paused") == final_bits(tmp_path / "straight")
