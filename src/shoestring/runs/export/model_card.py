"""The model card of an export: README.md with a header in YAML, as Hugging Face's hub reads it.

It has names of files but no paths, which would tell about the machine and its user.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.reading import number
from shoestring.base.units import count_text
from shoestring.version import __version__

ERROR, BASELINES = "_error", ("majority_", "copy_")
"""The end of the name of a metric's standard error, and the beginnings of those of its baselines."""

_PATH = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/'\"`,;()]+/)*([^\s/'\"`,;()]+)/?")


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What is known about an exported model."""

    recipe: str
    summary: str
    """The first paragraph of the recipe's description."""
    format: str
    weights: str
    """Which weights of the run they are, and how far it was."""
    parameters: int
    max_difference: float | None
    """The largest difference of an output from the model's; None if no outputs were compared."""
    samples: Mapping[str, int]
    """The number of samples of each part of the data."""
    metrics: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    limits: Sequence[str]
    """Full sentences."""
    interface: Sequence[str]
    """Full sentences about inputs and outputs."""
    usage: str
    metadata: Mapping[str, Any]


def render(facts: CardFacts) -> str:
    """Return the text of the model card."""
    header = {"tags": ["shoestring", facts.recipe], **facts.metadata}
    difference = (
        "The weights are those of the run, bit for bit."
        if facts.max_difference is None
        else f"Its outputs differ from those of the trained model by at most {facts.max_difference:.3g}, compared on "
        "samples of the data."
    )
    before_code = [
        "---",
        "# license: choose one; it also depends on the data and on pretrained weights, which have their own",
        *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in header.items()),
        "---",
        "",
        f"# {facts.recipe}, exported as {facts.format}",
        "",
        facts.summary,
        "",
        f"Trained with the recipe `{facts.recipe}` of Shoestring {__version__}: {facts.weights}. "
        f"{count_text(facts.parameters)} parameters. {difference}",
    ]
    after_code = [
        *_section("Inputs and outputs", _list(facts.interface)),
        *_section("Data", _list(f"{part}: {count_text(count)} samples" for part, count in facts.samples.items())),
        *_section("Metrics", _metrics(facts.metrics)),
        *_section("Limits", _list(facts.limits)),
        *_section("Options", _list(_value(name, value) for name, value in facts.options.items())),
        *_section("Settings", _list(_value(name, value) for name, value in facts.settings.items())),
        *_section("License", ["Not chosen yet: whoever publishes this model has to name it here and in the header."]),
        "",
    ]
    # Code has no paths of this machine, but tags such as </think>, which look like paths.
    code = _section("Use", ["```python", facts.usage.rstrip(), "```"])
    return "\n".join([*map(without_paths, before_code), *code, *map(without_paths, after_code)])


def without_paths(text: str) -> str:
    """Return the text with every absolute path reduced to its last name."""
    return _PATH.sub(r"\1", text)


def without_path(value: Any) -> Any:
    """Return the last name of a value that is an absolute path or one below a home, and any other value as it is."""
    is_path = isinstance(value, str) and (Path(value).is_absolute() or value.startswith("~"))
    return Path(value).name if is_path else value


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _list(sentences: Any) -> list[str]:
    return [f"- {' '.join(str(sentence).split())}" for sentence in sentences]


def _value(name: str, value: Any) -> str:
    return f"`{name}`: {json.dumps(without_path(value), ensure_ascii=False)}"


def _metrics(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [row for part, metrics in parts.items() for row in _metric_rows(part, metrics)]
    if not rows:
        return []
    return [
        "| part | metric | value | standard error | baseline |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "The baseline is that of the recipe: the most frequent class, or the unchanged input.",
    ]


def _metric_rows(part: str, metrics: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, value in metrics.items():
        if number(value) is None or name.endswith(ERROR) or name.startswith(BASELINES):
            continue
        baseline = next((metrics[prefix + name] for prefix in BASELINES if prefix + name in metrics), None)
        cells = [part, name, *(_number(cell) for cell in (value, metrics.get(name + ERROR), baseline))]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _number(value: Any) -> str:
    parsed = number(value)
    return "" if parsed is None else f"{parsed:.4g}"
