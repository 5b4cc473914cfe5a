"""Evidence of evaluations in the events, and images of its examples in the run's directory."""

import random
import shutil
from pathlib import Path

import pytest
import torch

from shoestring.runs.evaluate import evaluate
from shoestring.runs.run import open_run
from shoestring.training.monitor.events import read
from tests.by_trainer import KINDS
from tests.ranks import run_ranks
from tests.sessions import final_bits, session
from tests.training.test_held_out_answers import Plain

PNG = b"\x89PNG\r\n\x1a\n" + b"content"


class Illustrated(Plain):
    """Has evidence in its metrics, and illustrates it with code that could change the bits of a run."""

    def __init__(self, act=lambda: PNG, losses=(3.0, 1.0, 2.0, 5.0)):
        self._act, self._losses, self._count = act, losses, 0

    def evaluate(self, model, batches):
        self._count += 1
        rows = [{"group": "best", "index": 2, "scores": {"loss": 0.5}}, {"group": "worst", "index": 99}]
        loss = self._losses[(self._count - 1) % len(self._losses)]
        return {"loss": loss, "evidence": {"examples": rows, "samples": [{"index": 1}]}}

    def identify(self, dataset, index):
        return f"sample {index}"

    def illustrate(self, model, dataset, index):
        random.random(), torch.rand(3)
        assert not model.training and not torch.is_grad_enabled()
        model(torch.ones(1, 2))
        model.train()
        return {"input": self._act(), "output": b"\xff\xd8\xff" + bytes([index])}


def evaluations(run):
    return [event for event in read(run / "events.jsonl") if event["event"] == "evaluation"]


def notes(run):
    return [event["message"] for event in read(run / "events.jsonl") if event["event"] == "note"]


def files(run):
    return sorted(str(path.relative_to(run)) for path in (run / "evidence").rglob("*.*"))


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_recorded_and_illustrated_without_changing_a_bit(tmp_path, kind):
    class Unillustrated(Illustrated):
        illustrate = None

        def evaluate(self, model, batches):
            return {"loss": super().evaluate(model, batches)["loss"]}

    session(Unillustrated(), tmp_path / "plain", {}, kind=kind)
    outcome = session(Illustrated(), tmp_path / "run", {}, kind=kind)
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "plain")
    assert outcome.metrics == {"validation": {"loss": 1.0}, "test": {"loss": 5.0}}
    assert all(event["metrics"].keys() == {"loss"} for event in evaluations(tmp_path / "run"))
    first, best, last, test = evaluations(tmp_path / "run")
    images = [{"caption": "input", "file": "2-0.png"}, {"caption": "output", "file": "2-1.jpg"}]
    assert best["evidence"]["examples"][0] == {
        "group": "best",
        "index": 2,
        "scores": {"loss": 0.5},
        "name": "sample 2",
        "images": images,
    }
    assert best["evidence"]["samples"] == [{"index": 1, "name": "sample 1"}]
    assert "images" in first["evidence"]["examples"][0] and "images" not in last["evidence"]["examples"][0]
    # Only those of the best epoch and of the test part remain.
    assert files(tmp_path / "run") == [
        f"evidence/{part}-{update:08d}/2-{name}"
        for part, update in (("test", test["update"]), ("validation", best["update"]))
        for name in ("0.png", "1.jpg")
    ]
    weights = shutil.copy(tmp_path / "run" / "best" / "model.safetensors", tmp_path)
    evaluated = evaluate(open_run(Path(weights), {}, recipe=Illustrated()))
    assert evaluated.metrics["test"].keys() == {"loss"}
    assert evaluated.evidence["test"]["samples"] == [{"index": 1}]


def out_of_memory():
    raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")


def fail():
    raise ValueError("no such image")


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (fail, "ValueError: no such image"),
        (out_of_memory, "out of memory: CUDA out of memory"),
        (lambda: b"GIF89a", "the image 'input' is not a PNG or a JPEG"),
        (lambda: PNG + bytes(1_000_000), "the image 'input' is not a PNG or a JPEG of at most 1,000,000 bytes"),
    ],
)
def test_images_that_cannot_be_made_are_a_note(tmp_path, act, reason):
    assert session(Illustrated(act), tmp_path, {}).status == "finished"
    assert len(notes(tmp_path)) == 3 and all(reason in note for note in notes(tmp_path))
    assert "images" not in evaluations(tmp_path)[-1]["evidence"]["examples"][0]


def test_names_that_cannot_be_made_are_a_note(tmp_path):
    class Unnamed(Illustrated):
        def identify(self, dataset, index):
            raise KeyError(index)

    assert session(Unnamed(), tmp_path, {}).status == "finished"
    assert notes(tmp_path)[0] == "the examples of the validation data have no names: KeyError: 1"
    assert "name" not in evaluations(tmp_path)[0]["evidence"]["examples"][0] and files(tmp_path)


def test_images_that_cannot_be_written_are_a_note(tmp_path):
    (tmp_path / "file").write_text("")

    class InTheWay(Illustrated):
        def evaluate(self, model, batches):
            (tmp_path / "run" / "evidence").write_text("")
            return super().evaluate(model, batches)

    assert session(InTheWay(losses=(1.0,)), tmp_path / "run", {}).status == "finished"
    assert all("the examples of the" in note for note in notes(tmp_path / "run")) and notes(tmp_path / "run")


def test_evidence_that_is_too_large_is_a_note(tmp_path):
    class Large(Illustrated):
        def evaluate(self, model, batches):
            return {"loss": 1.0, "evidence": {"examples": ["x" * 400_000]}}

    assert session(Large(), tmp_path, {}).status == "finished"
    assert "evidence" not in evaluations(tmp_path)[0]
    assert notes(tmp_path)[0] == "the evidence of the validation metrics is not recorded: more than 300,000 characters"


def test_first_rank_illustrates(tmp_path):
    def act(rank):
        session(Illustrated(), tmp_path / "run", {"gpus": 2, "logical_shards": 2})

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert len(files(tmp_path / "run")) == 4
    session(Illustrated(), tmp_path / "single", {"logical_shards": 2})
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "single")
