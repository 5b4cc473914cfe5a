"""The page of the settings, from the class `Settings`."""

from docs.generate.docstrings import attributes
from docs.generate.markdown import code, escape, header, paragraph, sentence

from shoestring.base import config
from shoestring.base.settings import Settings

_INTRODUCTION = """
A setting changes memory, speed or what is saved. It does not change the training result beyond rounding, so the plan
chooses what is not set: `auto` leaves the choice to the plan or the session. [Options](recipes.md) change the training
result, and the plan never chooses them.

A setting is set by `--set KEY=VALUE` on the command line, by the table `[set]` of a
[configuration file](index.md#configuration-file), and by a keyword argument in Python:

```sh
shoestring plan temporal --on kaggle-t4 --set micro_batch=64 --set precision=fp16
```
"""


def page() -> str:
    """Return the page with a section for each setting."""
    documented = attributes(Settings)
    sections = [section(field, documented[name].docstring, level="##") for name, field in Settings.fields().items()]
    return "\n".join([header("Settings").rstrip("\n"), _INTRODUCTION, *sections])


def section(field: config.Field, docstring: str, *, level: str) -> str:
    """Return the section of a setting or of an option, with the longer text of its docstring."""
    lines = [
        f"{level} {field.name}",
        paragraph(f"{escape(sentence(field.help))} {escape(docstring)}"),
        "",
        f"- Value: {value_text(field)}",
        f"- Default: {code(field.none if field.default is None else config.option_text(field.default))}",
        "",
    ]
    return "\n".join(lines)


def value_text(field: config.Field) -> str:
    """Return what a field accepts, as Markdown: its choices or its type."""
    if not field.choices:
        return field.expected()
    choices = ", ".join(code(choice) for choice in field.choices)
    return f"one of {choices}" + (f" or {code(field.none)}" if field.optional else "")
