"""The page of the JSON answers: the keys of what each command prints with `--json`."""

from collections.abc import Mapping
from dataclasses import dataclass

from docs.generate.json_keys import Key, Maker, MissingDocstringError, Reader
from docs.generate.markdown import code, escape, header, table

from shoestring.answers.watch.view import View
from shoestring.api import kaggle
from shoestring.base.json_values import TABLE
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.hardware.measured import MeasuredRates
from shoestring.planning import comparison, planner
from shoestring.planning.estimation import Estimate
from shoestring.planning.inference import InferencePlan
from shoestring.planning.plan import Plan
from shoestring.recipe import finding
from shoestring.recipe.new import NewRecipe
from shoestring.remote.kaggle import following, package, starting
from shoestring.remote.kaggle.forecast import Forecast
from shoestring.remote.notebook.writing import WrittenNotebook
from shoestring.runs.check import loading, preflight, trial_findings
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export.export import Export
from shoestring.runs.measurement.measurement import Measurement
from shoestring.runs.predict.predict import Predictions
from shoestring.runs.rehearse.prepared import PreparedRehearsal
from shoestring.runs.rehearse.rehearsal import Rehearsal
from shoestring.runs.replay.replayed import Replay
from shoestring.training.session.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command prints with `--json`."""

    command: str
    """The heading: the command, with the options that decide about the answer."""
    makers: tuple[Maker, ...]
    """What makes its object; the keys of several are those of one object."""
    is_list: bool = False
    note: str = ""


_CHAIN = (following.describe,)
ANSWERS = (
    Answer(command="recipes", makers=(finding.describe,), is_list=True),
    Answer(command="recipes RECIPE", makers=(finding.describe,), note="One object of the list above."),
    Answer(command="targets", makers=(Target,), is_list=True),
    Answer(command="estimate", makers=(Estimate,)),
    Answer(
        command="plan", makers=(Plan,), note="`plan.json` in a run's directory has this object under the key `plan`."
    ),
    Answer(command="plan with several --on", makers=(comparison.Comparison,)),
    Answer(
        command="plan --for predict", makers=(InferencePlan,), note="With several `--on` it is a list of these objects."
    ),
    Answer(command="rehearse", makers=(Rehearsal,)),
    Answer(command="rehearse --prepare", makers=(PreparedRehearsal,)),
    Answer(command="check", makers=(preflight.CheckResult,)),
    Answer(command="check --measure", makers=(MeasuredRates,)),
    Answer(command="train", makers=(Outcome,)),
    Answer(command="evaluate", makers=(Evaluation,)),
    Answer(command="export", makers=(Export,)),
    Answer(command="predict --out", makers=(Predictions,)),
    Answer(command="measured", makers=(Measurement,)),
    Answer(command="replay", makers=(Replay,)),
    Answer(command="notebook", makers=(WrittenNotebook,)),
    Answer(command="new recipe", makers=(NewRecipe,)),
    Answer(
        command="watch", makers=(View,), note="One object on one line for each change; with `--once` a single object."
    ),
    Answer(command="kaggle start", makers=_CHAIN, note="`kaggle status` and `kaggle fetch` print the same object."),
    Answer(command="kaggle start --dry-run", makers=(package.dry_run, starting.preview)),
    Answer(command="kaggle status", makers=_CHAIN, note="The object of [`kaggle start`](#kaggle-start)."),
    Answer(command="kaggle fetch", makers=_CHAIN, note="The object of [`kaggle start`](#kaggle-start)."),
    Answer(
        command="kaggle stop",
        makers=(*_CHAIN, kaggle.stop),
        note="The object of [`kaggle start`](#kaggle-start), and:",
    ),
)

_INTRODUCTION = """
A command with `--json` prints its answer as one JSON value on standard output. Bytes are integers, durations are
numbers of seconds, and times of events are unix seconds. A value that is unknown or does not apply is null. A dot
leads into an object, `[]` into each object of a list: `memory.parts[].bytes`.

Later versions may add keys. The exit status is that of the [command](commands.md#answers-and-exit-statuses); an error
is a message on standard error and prints no JSON.
"""
_READER = Reader(
    inner={
        (Plan, "alternatives"): planner.alternative_json,
        (comparison.Comparison, "comparison"): comparison._row,
        (preflight.CheckResult, "tried"): trial_findings.summarize_trial,
        (preflight.CheckResult, "tried.loading"): loading.Loading,
        (following.describe, "forecast"): Forecast,
    },
    links={Settings: "see [Settings](settings.md)", Plan: "see [plan](#plan)"},
)


_VALUES = """
Recipes, scripts and libraries have values that JSON lacks. These forms are the same in answers, rows of predictions,
metrics, events and the files of a run:
"""


def keys_of(answer: Answer) -> tuple[Key, ...]:
    """Return the keys of the object that a command prints."""
    keys = {key.name: key for maker in answer.makers for key in _READER.keys(maker)}
    return tuple(keys.values())


def page() -> str:
    """Return the page with a section for each answer.

    Raises MissingDocstringError with all keys that the code does not explain.
    """
    sections, problems, printed = [], [], {}
    for answer in ANSWERS:
        try:
            sections.append(_section(answer, keys_of(answer), printed))
        except MissingDocstringError as error:
            problems.append(str(error))
        printed[answer.makers] = answer.command
    if problems:
        raise MissingDocstringError("\n".join(dict.fromkeys(problems)))
    values = "\n".join(["## Values of recipes", _VALUES, table(("value", "form in JSON"), TABLE)])
    return "\n".join([header("JSON answers").rstrip("\n"), _INTRODUCTION, *sections, values])


def _section(answer: Answer, keys: tuple[Key, ...], printed: Mapping[tuple[Maker, ...], str]) -> str:
    lines = [f"## {answer.command}"]
    if answer.is_list:
        lines += ["A list of objects with these keys.", ""]
    if answer.note:
        lines += [answer.note, ""]
    if answer.makers in printed:
        return "\n".join(lines)
    repeated = {key.name for makers in printed if makers == answer.makers[:-1] for key in keys_of_makers(makers)}
    rows = (
        (code(name), kind, escape(meaning) if "](" not in meaning else meaning)
        for key in keys
        if key.name not in repeated
        for name, kind, meaning in key.rows()
    )
    return "\n".join([*lines, table(("key", "type", "meaning"), rows)])


def keys_of_makers(makers: tuple[Maker, ...]) -> tuple[Key, ...]:
    """Return the keys of the object that these make."""
    return keys_of(Answer(command="", makers=makers))
