"""The public interface of version 0.1.0 is still available: names, arguments, flags, keys, files.

Each table contains the interface of that version. Additions since then are in none of them.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import pytest
import torch

import shoestring
import shoestring.pieces
from shoestring.base import errors
from shoestring.base.renamed import ARGUMENTS
from shoestring.integrations.trainer import surviving

FUNCTION = object()
"""A default value that is any function."""


NAMES = {
    "estimate": lambda recipe, on="local", **values: ...,
    "plan": lambda recipe, on="local", *, limit_seconds=None, disk_bytes=None, usd_per_hour=None, calibrate=None,
    **values: ...,
    "compare": lambda recipe, on, **values: ...,
    "check": lambda recipe=None, on="local", *, run="runs", **values: ...,
    "train": lambda recipe, plan=None, *, run, on="local", limit_seconds=None, disk_bytes=None, allow_inexact=False,
    **values: ...,
    "evaluate": lambda directory, *, recipe=None, on="local", limit_seconds=None, **values: ...,
    "report": lambda run: ...,
    "integrations.trainer.surviving": lambda run, *, limit_seconds=None, disk_bytes=None, save_every_seconds=None,
    keep_checkpoints=2, allow_inexact=False: ...,
    "pieces.DataOrder": lambda *, samples, effective_batch, seed, shards=(), mix=1: ...,
    "pieces.DataOrder.of": lambda dataset, *, effective_batch, seed: ...,
    "pieces.DataOrder.place": lambda self, update: ...,
    "pieces.DataOrder.indices": lambda self, update: ...,
    "pieces.Recovering": lambda model, optimizer, arithmetic, *, told=FUNCTION, otherwise=FUNCTION: ...,
    "pieces.Recovering.run": lambda self, attempt, micro_batch: ...,
    "pieces.Shards": lambda names, counts, read, *, decode=None, mix=2: ...,
    "pieces.Shards.__len__": lambda self: ...,
    "pieces.Shards.__getitem__": lambda self, index: ...,
    "pieces.Store": lambda root, *, keep=2, limit_bytes=None, expendable=FUNCTION, on_damaged=None: ...,
    "pieces.Store.updates": lambda self: ...,
    "pieces.Store.path": lambda self, update: ...,
    "pieces.Store.newest_verified": lambda self: ...,
    "pieces.Store.save": lambda self, update, state: ...,
    "pieces.Store.load": lambda self: ...,
    "pieces.arithmetic": lambda name, device: ...,
    "pieces.derive": lambda seed, *place: ...,
    "pieces.deterministic": lambda: ...,
    "pieces.pad_batch": lambda samples, value, *, multiple=8: ...,
    "pieces.seed_all": lambda value: ...,
    "pieces.session": lambda limit_seconds=None, *, started=None: ...,
    "pieces.split": lambda indices, micro_batch: ...,
    "pieces.stage": lambda source, folder, *, budget_bytes, progress=FUNCTION: ...,
    "pieces.update": lambda model, optimizer, loss, microbatches, *, samples, arithmetic, clip_norm=None, run=None: ...,
}  # fmt: skip
"""Names that are imported from `shoestring`, each with its arguments."""

FLAGS = {
    "recipes": "--json",
    "targets": "--json",
    "estimate": "nothing --on local --set epochs=2 --set seed=1 --json",
    "plan": "nothing --on t4 --on kaggle-t4 --limit 9h --disk 15GB --price 0.5 --calibrate run --set epochs=2 --json",
    "check": "nothing --on local --run run --set epochs=2 --json",
    "train": "nothing --run run --on local --limit 90s --disk 15GB --set epochs=2 --allow-inexact --json",
    "evaluate": "nothing --on cpu --recipe nothing --limit 20m --set epochs=2 --json",
    "report": "nothing",
}
"""A command line with every flag of a command. `nothing` does not exist, which the error says."""

PARTS = """
    model batch loss data options collate length label optimizer schedule stage blocks first_batches clip_norm rollout
    notes evaluate best patience learning_rate epochs effective_batch seed trainer measured learner
"""
"""The parts of a recipe."""


def keys(names: str, **nested: Any) -> dict[str, Any]:
    """The keys of a JSON object; `nested` has objects in it, or lists of them."""
    return {**dict.fromkeys(names.split()), **nested}


SETTINGS = keys(
    "micro_batch precision checkpointing optimizer_kernel offload sharding allocator compile cudnn_benchmark workers "
    "stage save_every_updates save_every_seconds keep_checkpoints keep_light light_weights"
)
OPTIONS = keys(
    "size architecture data on_bad_rows epochs effective_batch seed learning_rate dropout patience seq_len horizon "
    "threshold label_smoothing warmup_epochs fold subset lora_r lora_alpha lora_targets quantization "
    "double_quantization weights optimizer_states"
)
ESTIMATE = keys(
    "target peak_bytes low_bytes high_bytes capacity_bytes fits",
    settings=SETTINGS,
    parameters=keys("total trainable"),
    allocated=keys("low value high"),
    reserved=keys("low value high"),
    parts=[keys("name bytes source")],
)
PLAN = keys(
    "verdict recipe target device binding changes ladder reasons notes advice",
    options=OPTIONS,
    settings=SETTINGS,
    memory=ESTIMATE,
    time=keys(
        "update_seconds epoch_seconds total_seconds low_update_seconds low_epoch_seconds low_total_seconds "
        "high_update_seconds high_epoch_seconds high_total_seconds evaluation_seconds source calibration",
        parts=[keys("name seconds")],
    ),
    sessions=[keys("hours updates epochs")],
    weeks=[keys("week sessions hours")],
    disk=keys("full_checkpoint_bytes light_checkpoint_bytes peak_bytes limit_bytes fits", parts=[keys("name bytes")]),
    host=keys("peak_bytes limit_bytes fits", parts=[keys("name bytes")]),
    cost=keys("usd", price=keys("usd_per_hour source date")),
    limits=[keys("name kind unit needs has enough holds")],
    proposals=[
        keys(
            "name values changes_learning trains fits peak_bytes high_bytes update_seconds note limit",
            settings=SETTINGS,
        )
    ],
    phases=[keys("name command seconds tells")],
    alternatives=[keys("fits peak_bytes high_bytes update_seconds", settings=SETTINGS)],
)
COMPARISON = keys(
    "target verdict micro_batch precision checkpointing high_bytes capacity_bytes update_seconds total_seconds hours "
    "sessions weeks usd usd_per_hour price_date"
)
RECIPE = keys("name summary", options=[keys("name default expected help own")])
TARGET = keys(
    "name gpus",
    device=keys(
        "name title kind memory_bytes compute_capability fp32_flops tf32_flops fp16_flops bf16_flops bandwidth "
        "context_bytes notes nvml_names sources precisions flash_attention lacks"
    ),
)
EVALUATED = keys("recipe weights update device precision seconds metrics notes")
OUTCOME = keys("status reason update total_updates metrics")


@pytest.fixture
def shoestring_command(run_command, monkeypatch, tmp_path):
    """`run_command` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run_command


@pytest.mark.parametrize("name", list(NAMES))
def test_names_take_their_old_arguments(name):
    value = attrgetter(name)(shoestring)
    renamed = ARGUMENTS.get(f"{value.__qualname__}.__init__" if inspect.isclass(value) else value.__qualname__, {})
    assert callable(value) and refused(NAMES[name], value, renamed) == []


def test_old_arguments_have_the_same_effect():
    from shoestring import pieces

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision = pieces.arithmetic("fp32", torch.device("cpu"))
    messages = []
    recovering = pieces.Recovering(
        model, optimizer, arithmetic=precision, told=messages.append, otherwise=lambda failure: ""
    )

    def attempt(micro_batch):
        if micro_batch > 2:
            raise MemoryError("no memory")
        loss = lambda model, batch: model(batch).sum()  # noqa: E731
        return pieces.update(model, optimizer, loss, [(torch.ones(4, 2), 4)], samples=4, arithmetic=precision)

    _, micro_batch = recovering.run(attempt, 4)
    assert micro_batch == 2 and [event.done for event in messages] == ["microbatch 2"]
    with pytest.raises(TypeError, match="both 'told' and its new name 'on_out_of_memory'"):
        pieces.Recovering(model, optimizer, precision, told=print, on_out_of_memory=print)


def test_old_errors_are_the_new_ones():
    assert errors.QuestionError is errors.UsageError
    with pytest.raises(AttributeError, match="has no attribute 'QuestionsError'"):
        errors.QuestionsError  # noqa: B018


def test_old_attributes_of_answers_are_the_new_ones():
    from shoestring.runs.check.finding import passed

    finding = passed("disk", "15 GiB free")
    assert finding.said == finding.message == finding.json()["said"]
    with pytest.raises(AttributeError, match="no attribute 'says'"):
        finding.says  # noqa: B018
    plan = shoestring.plan(Mine(), on="t4")
    assert plan.ladder == plan.fallbacks == tuple(plan.json()["ladder"])


def test_star_import_has_the_old_names():
    for module, place in ((shoestring, ""), (shoestring.pieces, "pieces.")):
        names = {name.removeprefix(place) for name in NAMES if name.startswith(place)}
        assert {name for name in names if "." not in name} <= set(module.__all__)


def test_refused_call_is_detected():
    """The tests above rely on this."""

    had = lambda first, second=2, *, third=3, **values: ...  # noqa: E731
    kinds = {
        "renamed": lambda first, other=2, *, third=3, **values: ...,
        "by its name alone": lambda first, *, second=2, third=3, **values: ...,
        "in another place": lambda second=2, first=None, *, third=3, **values: ...,
        "one more that is needed": lambda first, second=2, *, third=3, fourth, **values: ...,
        "another default": lambda first, second=2, *, third=4, **values: ...,
        "no others": lambda first, second=2, *, third=3: ...,
    }
    assert [kind for kind, now in kinds.items() if not refused(had, now)] == []
    grown = lambda first, second=2, fourth=None, *, third=3, fifth=None, **values: ...  # noqa: E731
    assert refused(had, grown) == refused(had, had) == []


def test_resumable_trainer_is_a_subclass(tmp_path):
    from transformers import Trainer

    with surviving(tmp_path / "run") as survive:
        made = survive(Trainer)
    assert issubclass(made, Trainer) and made is not Trainer and made.__name__ == "Trainer"


@pytest.mark.parametrize("verb", list(FLAGS))
def test_command_takes_its_old_flags(shoestring_command, verb):
    status, out, err = shoestring_command(verb, *FLAGS[verb].split())
    assert "No such option" not in err and "Usage" not in err
    if "nothing" in FLAGS[verb]:
        assert (status, out) == (2, "") and err.startswith("error: ") and "nothing" in err
    else:
        assert status == 0 and json.loads(out)


def test_unknown_flag_is_refused(shoestring_command):
    """The test above relies on this."""
    for verb, words in FLAGS.items():
        status, _, err = shoestring_command(verb, *words.split(), "--no-such-flag")
        assert status == 2 and "No such option" in err, verb


def test_json_of_estimate_and_plan_has_old_keys(shoestring_command):
    for verb, expected in (("estimate", ESTIMATE), ("plan", PLAN)):
        status, out, _ = shoestring_command(verb, "temporal", "--on", "kaggle-t4", "--set", "size=tiny", "--json")
        assert status == 0 and lacking(json.loads(out), expected) == [], verb


def test_json_of_recipes_and_targets_has_old_keys(shoestring_command):
    for verb, expected in (("recipes", RECIPE), ("targets", TARGET)):
        _, out, _ = shoestring_command(verb, "--json")
        assert lacking(json.loads(out), [expected]) == [], verb


def test_json_of_comparison_has_old_keys():
    answer = shoestring.compare(Mine(), on=["t4", "kaggle-t4"]).json()
    assert lacking(answer, {"comparison": [COMPARISON], "plans": [keys(" ".join(PLAN))]}) == []


def test_missing_keys_are_detected():
    """The tests above rely on this."""
    expected = keys("a", b=keys("c"), d=[keys("e")])
    assert lacking({"a": 1, "b": {"c": 2, "new": 3}, "d": [{"e": 4}]}, expected) == []
    assert lacking({"b": {}, "d": [{"e": 4}, {}]}, expected) == [".a", ".b.c", ".d[1].e"]
    assert lacking({"a": 1, "b": None, "d": []}, expected) == [".b.c", ".d[0]"]


def test_recipe_parts_and_run_files_are_used(tmp_path, monkeypatch):
    """Every part of a recipe is looked up, perhaps in another process, and a run has the old files and keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log = tmp_path / "parts"
    run = tmp_path / "run"
    outcome = shoestring.train(RecordingRecipe(log), run=run, on="cpu", subset=0.5, epochs=2, keep_light=1)
    evaluated = shoestring.evaluate(run, recipe=RecordingRecipe(log), on="cpu")
    assert set(PARTS.split()) - set(log.read_text().split()) == set()

    shoestring.report(run)
    assert {path.name for path in run.iterdir()} >= {
        "plan.json", "state.json", "events.jsonl", "ledger.json", "report.html", "checkpoints", "light", "best",
    }  # fmt: skip
    assert {path.name for path in run.glob("checkpoints/update-00000004/*")} >= {
        "manifest.json", "state.json", "model.safetensors", "optimizer.safetensors",
    }  # fmt: skip
    assert {str(path.relative_to(run)) for path in run.rglob("*.safetensors") if "checkpoints" not in path.parts} == {
        "best/model.safetensors", "light/model.safetensors", "light/update-00000004/model.safetensors",
    }  # fmt: skip
    plan, state = (json.loads((run / name).read_text()) for name in ("plan.json", "state.json"))
    assert lacking(plan, keys("recipe reference digest", options=keys("epochs"), plan=keys(" ".join(PLAN)))) == []
    assert lacking(state, keys("status update total_updates reason next metrics")) == []
    assert lacking(vars(evaluated), EVALUATED) == lacking(vars(outcome), OUTCOME) == []


class Mine:
    """A recipe with the three required methods."""

    def model(self):
        return torch.nn.Linear(3, 1)

    def batch(self, size):
        return torch.zeros(size, 3)

    def loss(self, model, batch):
        return model(batch).square().mean()


class RecordingRecipe:
    """`Mine` with data; the file `log` has the names of all attributes that were looked up."""

    def __init__(self, log):
        self.log = log

    def __getattr__(self, name):
        if name.startswith("__") or name == "log":
            raise AttributeError(name)
        with self.log.open("a") as file:
            file.write(f"{name}\n")
        if name == "data":
            return lambda: {"train": torch.ones(32, 3), "validation": torch.ones(4, 3), "test": torch.ones(4, 3)}
        return {"effective_batch": 8}.get(name) or getattr(Mine(), name)


def refused(had: Callable[..., Any], now: Callable[..., Any], renamed: Mapping[str, str] = {}) -> list[str]:
    """Return the reasons why a call that `had` accepts is refused by `now`, or means something else there.

    `renamed` has the keywords that `now` accepts by their old names, with the new ones.
    """
    before, after = (dict(inspect.signature(function).parameters) for function in (had, now))
    problems = []
    for place, parameter in enumerate(before.values()):
        current = after.get(renamed.get(parameter.name, parameter.name))
        by_name = (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        kinds = by_name if parameter.kind == parameter.KEYWORD_ONLY else (parameter.kind,)
        if current is None or current.kind not in kinds:
            problems.append(f"{parameter} is not taken")
        elif parameter.kind == parameter.POSITIONAL_OR_KEYWORD and list(after).index(current.name) != place:
            problems.append(f"{parameter} is taken in another place")
        elif not (callable(current.default) if parameter.default is FUNCTION else current.default == parameter.default):
            problems.append(f"{parameter} is {current}")
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = {name for name, other in after.items() if other.default is other.empty and other.kind not in optional}
    return problems + [
        f"{name} is needed as well" for name in sorted(needed - {renamed.get(name, name) for name in before})
    ]


def lacking(value: Any, expected: Any, at: str = "") -> list[str]:
    """Return the keys of `expected` that `value` lacks; a list needs at least one item, and every item the keys."""
    if isinstance(expected, list):
        if not value:
            return [f"{at}[0]"]
        return [key for place, item in enumerate(value) for key in lacking(item, expected[0], f"{at}[{place}]")]
    if not isinstance(expected, dict):
        return []
    value = value or {}
    absent = [f"{at}.{name}" for name, inner in expected.items() if name not in value and not inner]
    return absent + [
        key for name, inner in expected.items() if inner for key in lacking(value.get(name), inner, f"{at}.{name}")
    ]
