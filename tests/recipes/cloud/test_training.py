import io
import json
from pathlib import Path

import pytest
from PIL import Image

from shoestring_recipes.cloud import Cloud, Options
from tests.sessions import final_bits, session
from tests.slow import slow_except

# 48 tiles make 3 updates of 16 samples in an epoch, each with two microbatches.
VALUES = {"size": "tiny", "crop": 16, "epochs": 2, "effective_batch": 16, "micro_batch": 8, "save_every_updates": 2}


def read_notes(run: Path) -> list[str]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if "message" in event]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never paused."""
    run = tmp_path_factory.mktemp("uninterrupted")
    assert session("cloud", run, VALUES).status == "finished"
    return run


@pytest.mark.parametrize("stop", slow_except(["limit", "SIGTERM"], "SIGTERM"))
def test_a_paused_run_ends_in_the_same_bits(uninterrupted: Path, stop: str, tmp_path: Path) -> None:
    updates = []
    # Pause in the first epoch, then in its last update, so that the next session evaluates the epoch.
    for loss_number in (3, 2, 3):
        outcome = session("cloud", tmp_path, VALUES, stop=stop, at=loss_number)
        assert outcome.status == "paused"
        updates.append(outcome.update)
    assert updates == [2, 3, 5]
    assert session("cloud", tmp_path, VALUES).status == "finished"
    assert final_bits(tmp_path) == final_bits(uninterrupted)


@pytest.mark.slow
def test_bits_depend_on_the_seed(uninterrupted: Path, tmp_path: Path) -> None:
    session("cloud", tmp_path, {**VALUES, "seed": 43})
    assert final_bits(tmp_path)["model"] != final_bits(uninterrupted)["model"]


def test_a_run_on_synthetic_data_has_a_note(uninterrupted: Path) -> None:
    notes = read_notes(uninterrupted)
    assert any(note.startswith("the data are synthetic") for note in notes)
    assert "training starts from random weights" in notes


@pytest.mark.slow
def test_tiny_network_beats_the_cloudy_image(tmp_path: Path) -> None:
    """With several seeds, four epochs over 48 tiles reached 19.5 to 20.7 dB; the cloudy image has 15.9."""
    outcome = session("cloud", tmp_path, {"size": "tiny", "epochs": 4})
    test, validation = outcome.metrics["test"], outcome.metrics["validation"]
    assert test["psnr"] > test["copy_psnr"] + 2.5
    assert validation["psnr"] > validation["copy_psnr"] + 3.5
    assert test["mae"] < 0.65 * test["copy_mae"] and test["sam"] < test["copy_sam"]
    assert validation["loss"] == validation["mae"]


def test_the_best_epoch_has_the_highest_psnr(uninterrupted: Path) -> None:
    events = [json.loads(line) for line in (uninterrupted / "events.jsonl").read_text().splitlines()]
    ratios = [event["metrics"]["psnr"] for event in events if event.get("part") == "validation"]
    assert len(ratios) == 2
    state = json.loads((uninterrupted / "state.json").read_text())
    assert state["metrics"]["validation"]["psnr"] == max(ratios)


def test_the_learning_rate_is_halved_every_fifth_epoch() -> None:
    schedule = Cloud().schedule
    assert [schedule(update, 3, 90) for update in (0, 14, 15, 29, 30)] == [1, 1, 0.5, 0.5, 0.25]


def test_an_evaluation_is_the_mean_over_images(uninterrupted: Path) -> None:
    recipe = Cloud(Options(size="tiny", crop=16))
    model, data = recipe.model().eval(), recipe.data()["test"]
    import torch
    from torch.utils.data import default_collate

    batches = [default_collate([data[index] for index in indices]) for indices in ((0, 1, 2), (3,))]
    with torch.no_grad():
        split = recipe.evaluate(model, batches)
        whole = recipe.evaluate(model, [default_collate([data[index] for index in range(4)])])
    evidence, _ = whole.pop("evidence"), split.pop("evidence")
    assert split == pytest.approx(whole, rel=1e-5)
    assert sum(evidence["histograms"]["psnr"]["counts"]) == len(evidence["samples"]) == len(evidence["examples"]) == 4
    psnrs = [row["scores"]["psnr"] for row in evidence["samples"]]
    assert psnrs == sorted(psnrs) and sum(psnrs) / 4 == pytest.approx(whole["psnr"])
    with torch.no_grad():
        pictures = recipe.illustrate(model, data, 0)
    assert list(pictures) == ["cloudy", "radar", "predicted", "true", "error"]
    assert all(Image.open(io.BytesIO(picture)).size == (16, 16) for picture in pictures.values())
    names = ("psnr", "ssim", "sam", "mae")
    assert set(whole) == {"loss", *names, *(f"copy_{name}" for name in names)}


def test_training_on_files_notes_skipped_rows(tmp_path: Path) -> None:
    from tests.recipes.cloud.images import write_triplet

    folder, run = tmp_path / "data", tmp_path / "run"
    rows = [f"{split},{write_triplet(folder, f'{number}.tif', number)}" for number, split in enumerate("111123")]
    (folder / "data.csv").write_text("\n".join([*rows, "1,s1,s2_cloudfree,s2_cloudy,absent.tif"]))
    values = {"size": "tiny", "crop": 16, "epochs": 1, "data": folder, "on_bad_rows": "skip"}
    outcome = session("cloud", run, values)
    assert outcome.status == "finished" and {"validation", "test"} == set(outcome.metrics)
    assert any(note.startswith("1 of 7 rows cannot be used and were skipped") for note in read_notes(run))
    assert not any("synthetic" in note for note in read_notes(run))
