"""GRPO by TRL on the tiny policy: it learns what it is rewarded for, and stopped it ends in the same bits."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from PIL import Image

import shoestring
from shoestring.errors import DataError, UsageError
from shoestring.recipe.finding import choose
from shoestring.recipes.chart import Chart, Options, training
from shoestring.recipes.chart.data import read_parts
from shoestring.session.deadline import Deadline
from tests.runs.test_evaluate import planned
from tests.sessions import run_session

TINY = {
    "size": "tiny", "prompt_len": 300, "completion_len": 6, "weights": "fp32", "effective_batch": 16, "generations": 8,
    "learning_rate": 1e-2, "micro_batch": 8, "precision": "fp32",
}  # fmt: skip


class Digits(Chart):
    """Rewarded for digits, on a few charts."""

    count = 8

    def data(self):
        charts = super().data()["train"]
        return {"train": replace(charts, rows=charts.rows[: self.count])}

    def rewards(self):
        return {"digits": lambda completion, _: sum(map(str.isdigit, completion)) / max(len(completion), 1)}


def session(run, *, epochs, stop_after=None, recipe=Digits, **options):
    loaded, settings = choose(recipe(), {**TINY, **options, "epochs": epochs})
    return run_session(loaded, settings, run, Counting(stop_after))


class Counting(Deadline):
    """Reached when so many updates were measured."""

    def __init__(self, updates):
        super().__init__(None)
        self._updates = updates

    def observe(self, kind, seconds):
        super().observe(kind, seconds)
        if kind == "update" and self._updates is not None:
            self._updates -= 1

    def reached(self):
        return self._updates is not None and self._updates <= 0


def adapter(run):
    return safetensors.torch.load_file(run / "light" / "adapter_model.safetensors")


def test_stopped_in_every_epoch_it_ends_in_the_same_bits(tmp_path):
    whole = session(tmp_path / "whole", epochs=2)
    assert (whole.status, whole.update) == ("finished", 4 * 2)
    stopped = [session(tmp_path / "stopped", epochs=2, stop_after=count) for count in (1, 5)]
    # One of the five is what the session before told of itself.
    assert [(outcome.status, outcome.update) for outcome in stopped] == [("paused", 1), ("paused", 5)]
    assert session(tmp_path / "stopped", epochs=2).status == "finished"
    expected, found = adapter(tmp_path / "whole"), adapter(tmp_path / "stopped")
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert any(value.abs().max() > 0 for name, value in expected.items() if "lora_B" in name)


def test_over_4_bit_weights_it_learns_and_stopped_it_ends_in_the_same_bits(tmp_path):
    """From a folder with weights and tokenizer, as the ecosystem saves them."""
    bits = pytest.importorskip("bitsandbytes")
    options = Options(size="tiny", weights="fp32")
    torch.manual_seed(0)
    for part in training.policy(options, Chart(options).data()["train"]):
        part.save_pretrained(tmp_path / "weights")
    found = []

    class Seen(Digits):
        def trainer(self, *args, **kwargs):
            found.append(super().trainer(*args, **kwargs))
            return found[-1]

    chosen = {"epochs": 1, "recipe": Seen, "weights_from": tmp_path / "weights", "quantization": "nf4"}
    session(tmp_path / "whole", **chosen)
    assert session(tmp_path / "stopped", stop_after=2, **chosen).update == 2
    assert session(tmp_path / "stopped", **chosen).update == 4
    for made in found:
        layers = [module for module in made.model.modules() if isinstance(module, bits.nn.Linear4bit)]
        assert len(layers) > 14 and {layer.weight.quant_type for layer in layers} == {"nf4"}
        assert {value.dtype for value in made.model.parameters() if value.requires_grad} == {torch.float32}
    expected, stopped = adapter(tmp_path / "whole"), adapter(tmp_path / "stopped")
    assert all(torch.equal(stopped[name], value) for name, value in expected.items())
    assert any(value.abs().max() > 0 for name, value in expected.items() if "lora_B" in name)


def test_completions_may_be_written_in_smaller_groups(tmp_path, monkeypatch):
    groups = []
    real = training.write

    def counted(model, given, **chosen):
        groups.append(len(given["input_ids"]))
        return real(model, given, **chosen)

    monkeypatch.setattr(training, "write", counted)
    assert session(tmp_path / "run", epochs=1, written_at_once=3).update == 4
    assert groups == 4 * [3, 3, 3, 3, 3, 1]


def test_it_learns_what_it_is_rewarded_for(tmp_path):
    session(tmp_path / "run", epochs=6)
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    means = [line["metrics"]["rewards/digits/mean"] for line in lines if line["event"] == "progress"]
    assert sum(means[-6:]) / 6 > sum(means[:6]) / 6 + 0.08


def test_a_tiny_run_is_measured_by_relaxed_accuracy(tmp_path):
    class Measured(Digits):
        def data(self):
            return {**super().data(), "validation": super().data()["train"]}

    outcome = session(tmp_path / "run", epochs=1, recipe=Measured)
    assert outcome.metrics == {"validation": {"relaxed_accuracy": 0.0, "answered": 0.0}}


def test_saved_weights_are_evaluated_as_the_run_did_it(tmp_path):
    class Telling(Digits):
        count = 4

        def data(self):
            return {**super().data(), "validation": super().data()["train"]}

        def measured(self, model, charts, polled):
            weights = sum(value.double().sum().item() for value in model.state_dict().values())
            return {**super().measured(model, charts, polled), "weights": weights}

    run, chosen = tmp_path / "run", {**TINY, "epochs": 1}
    outcome = session(run, epochs=1, recipe=Telling)
    planned(run, Telling(), chosen, {})
    newest = max((run / "checkpoints").iterdir())
    for weights in (run, newest):
        assert shoestring.evaluate(weights, recipe=Telling()).metrics == outcome.metrics


def folder(place, rows, images=("a.png", "b.png")):
    (place / "png").mkdir()
    for name in images:
        Image.new("RGB", (30, 20), "red").save(place / "png" / name)
    (place / "rows.json").write_text(json.dumps(rows))
    return place


ROW = {"imgname": "a.png", "query": "how many?", "label": 3}


def test_rows_are_read_with_their_images(tmp_path):
    parts = read_parts(
        folder(tmp_path, [{**ROW, "imgname": f"{'ab'[n % 2]}.png"} for n in range(20)]), (28, 56), "refuse"
    )
    assert {name: len(part) for name, part in parts.items()} == {"train": 16, "validation": 2, "test": 2}
    row = parts["train"][1]
    assert row["image"].size == (28, 56) and row["label"] == "3" and row["table"] is None
    assert row["prompt"][1] == {"role": "user", "content": "how many?"}


def test_every_bad_row_is_named_and_may_be_skipped(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"")
    rows = [ROW, {**ROW, "imgname": "../secret.png"}, {**ROW, "label": ""}, 7, {**ROW, "imgname": "c.png"}]
    place = folder(tmp_path, rows)
    (place / "png" / "c.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="4 of 5 rows") as refused:
        read_parts(place, (28, 28), "refuse")
    assert [f"line {line}" in problem for line, problem in zip((2, 3, 4, 5), refused.value.problems, strict=True)]
    assert "is not in" in refused.value.problems[0] and "has no label" in refused.value.problems[1]
    parts = read_parts(place, (28, 28), "skip")
    assert len(parts["train"]) == 1 and "4 of 5 rows" in parts["train"].notes[0]


def test_a_folder_of_another_layout_is_refused(tmp_path):
    with pytest.raises(UsageError, match="0 JSON files"):
        read_parts(tmp_path, (28, 28), "refuse")


def test_random_weights_and_drawn_charts_are_said_to_be_that():
    recipe = Chart(Options(**{name: value for name, value in TINY.items() if name not in ("micro_batch", "precision")}))
    recipe.data()
    drawn, random = recipe.notes()
    assert "not EvoChart" in drawn and "random" in random
