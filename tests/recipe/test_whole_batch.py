"""Recipes whose updates are never split."""

import json

import pytest

import shoestring
from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.planner import make_plan
from shoestring.recipe.finding import choose
from shoestring.recipe.whole_batch import last_batch_notes, require_whole_batch
from shoestring.techniques.fallbacks import Sizes
from shoestring.training.monitor.events import read
from tests.contrastive import InfoNCE, Whole
from tests.sessions import session


def test_every_verb_refuses_what_would_split_an_update(tmp_path, monkeypatch):
    verbs = [
        lambda **values: shoestring.plan(Whole(), "t4", **values),
        lambda **values: shoestring.estimate(Whole(), "t4", **values),
        lambda **values: shoestring.check(Whole(), run=tmp_path, **values),
        lambda **values: shoestring.train(Whole(), run=tmp_path / "run", on="cpu", **values),
    ]
    for verb in verbs:
        with pytest.raises(UsageError, match="whole_batch = True") as raised:
            verb(micro_batch=16)
        assert "not the 32 of effective_batch" in raised.value.problems[0]
    for name in ("gpus", "logical_shards"):
        with pytest.raises(UsageError) as raised:
            require_whole_batch(choose(Whole(), {})[0], Settings(**{name: 2}))
        assert raised.value.problems[0].startswith(f"{name}=2: each of the 2 parts")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for verb in verbs:
        with pytest.raises(UsageError) as raised:
            verb()
        assert raised.value.problems == (
            "WORLD_SIZE=2: each of the 2 parts would compare only its own samples with each other",
        )
    require_whole_batch(choose(InfoNCE(), {})[0], Settings(micro_batch=1))
    monkeypatch.setenv("WORLD_SIZE", "1")
    require_whole_batch(choose(Whole(), {})[0], Settings(micro_batch=64))


def test_plan_has_one_microbatch_and_one_gpu():
    plan = make_plan(choose(Whole(), {})[0], find("kaggle-t4x2"), Settings(precision="fp32"))
    assert plan.settings.micro_batch == 32 and not any("micro_batch" in line for line in plan.fallbacks)
    assert {alternative["settings"]["micro_batch"] for alternative in plan.alternatives} <= {32}
    assert any("whole_batch = True in the recipe" in reason for reason in plan.reasons)
    assert shoestring.estimate(Whole(), "kaggle-t4x2").settings.micro_batch == 32


def test_updates_and_evaluations_have_whole_batches(tmp_path):
    batches = []

    class Recording(Whole):
        def loss(self, model, batch):
            batches.append((model.training, len(batch[0])))
            return super().loss(model, batch)

    outcome = shoestring.train(Recording(), run=tmp_path / "run", on="cpu", subset=33, micro_batch=64)
    # A single remaining sample joins the update before, and is not a microbatch of its own.
    assert batches == [(True, 33), (False, 32), (False, 16)]
    messages = [event["message"] for event in read(tmp_path / "run" / "events.jsonl") if event["event"] == "note"]
    (note,) = (message for message in messages if message.startswith("whole_batch:"))
    assert note.endswith("train 33, validation 16")
    batches.clear()
    evaluation = shoestring.evaluate(tmp_path / "run", recipe=Recording(), on="cpu")
    assert evaluation.metrics["validation"] == outcome.metrics["validation"]
    assert batches == [(False, 32), (False, 16)] and evaluation.notes[-1].endswith(": validation 16")
    with pytest.raises(UsageError, match="never split"):
        shoestring.evaluate(tmp_path / "run", recipe=Recording(), on="cpu", micro_batch=16)
    with pytest.raises(UsageError, match="never split"):
        shoestring.train(Recording(), run=tmp_path / "run", on="cpu", micro_batch=16)
    assert not last_batch_notes(choose(Whole(), {})[0], {"train": range(64), "validation": range(32)})


@pytest.mark.parametrize("training", [True, False])
def test_out_of_memory_is_not_split(tmp_path, training):
    class TooLarge(Whole):
        def loss(self, model, batch):
            if model.training == training:
                raise MemoryError("no 8.00 GiB")
            return super().loss(model, batch)

    with pytest.raises(RunError, match="all 16 samples at once, which are not split"):
        session(TooLarge(), tmp_path, {"effective_batch": 16})
    events = list(read(tmp_path / "events.jsonl"))
    assert not [event for event in events if event["event"] == "oom"]


def test_sizes_of_an_earlier_run_do_not_split_updates():
    sizes = Sizes.from_settings(Settings(micro_batch=32))
    saved = json.loads(json.dumps({**sizes.json(), "micro_batch": 8, "evaluation_batch": 4, "checkpointing": "full"}))
    assert (sizes.resumed(saved).micro_batch, sizes.resumed(saved).evaluation_batch) == (8, 4)
    resumed = sizes.resumed(saved, whole_batch=True)
    assert (resumed.micro_batch, resumed.evaluation_batch, resumed.checkpointing) == (32, None, "full")
