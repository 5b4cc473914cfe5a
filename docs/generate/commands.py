"""The page of the commands, from the objects of the command line that parse them."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main
from docs.generate.markdown import code, escape, header, paragraph, table

from shoestring.cli.commands import app

_PROGRAM = "shoestring"
_INTRODUCTION = """
`shoestring COMMAND --help` prints the same in a terminal. `shoestring --install-completion` adds completion of
commands, recipes, targets, options and runs to new shells, and `shoestring --version` prints the version.

## Answers and exit statuses
Answers go to standard output, progress and errors to standard error. `--json` prints the answer as JSON; bytes are
integers, seconds are numbers, and [JSON answers](json.md) lists the keys.

| exit status | meaning |
|---|---|
| 0 | the question is answered, also if the answer is "does not fit"; the session has finished or paused the run |
| 1 | a run or a check has failed, or the answer could not be written |
| 2 | invalid usage: an unknown name, an invalid value, a file that cannot be used |

An answer that cannot be written to standard output is an error (1), except the outcome of `train`, which is also in
`state.json`. A reader that closes the pipe (`| head`) and a closed standard output (`>&-`) are no errors. Progress and
messages only report: a standard error that is closed or full does not end a run. An error in the recipe's code names
its lines in your files.

| environment variable | meaning |
|---|---|
| `SHOESTRING_TRACEBACK=1` | print the whole traceback of an error |
| `SHOESTRING_TRACE_SECONDS` | the seconds after which the trace of one update ends with an error; by default 300 |
| `SHOESTRING_PROBE=0` | do not measure plans for this machine, as with `--no-probe` |

Work of more than 15 seconds before an answer writes a line of progress to standard error.

## Arguments and options in detail
| argument or option | meaning |
|---|---|
| `RECIPE` | the name of a [built-in recipe](recipes.md) or of one of an \
[installed package](../guides/recipe.md#a-recipe-in-a-package), `path/to/file.py`, `path/to/file.py:Class`, or \
[`hf:path/to/config.json`](index.md#hugging-face-configurations). A recipe file is executed: give only \
files that you would run with Python |
| `--on TARGET` | the machine and its limits, by its name in [Targets](targets.md). `local` is this machine, and `cpu` \
leaves out its GPU. A path that ends with `.json` is the device of a file of \
[`check --measure`](index.md#rates-of-your-own-gpu) |
| `--set KEY=VALUE` | an [option of the recipe](recipes.md), which changes the training result, or a \
[setting](settings.md), which does not. An unknown key is an error with the most similar one. Dots are underscores: \
`lora.r` is `lora_r` |
| `--config FILE` | a [configuration file](index.md#configuration-file) with values for what the command line \
leaves out |
| `--limit DURATION` | the length of a session instead of the platform's, such as `90s`, `20m` or `1.5h`. `train` \
saves and ends before it, planning included; Ctrl-C, SIGTERM and SIGHUP end a session in the same way |
| `--disk SIZE` | the disk space for the run's directory instead of the platform's, in KB, MB, GB, TB or KiB, MiB, \
GiB, TiB |
| `--recipe RECIPE` | of commands for a run: the recipe, if its file has moved since the run or is not \
[trusted](run_directory.md#runs-from-someone-else), or if the weights belong to no run |
| `--log NAME` | `tensorboard` needs the extra `tensorboard`. Later sessions of the run write the log \
without being asked |
| `--backup URL` | the [copies](../guides/backup.md) are made in the background. Give the option in each session |
| `--from URL` | the copy must verify. A run that is in the directory already is used if it is at least as far, and is \
never overwritten |
"""


def page() -> str:
    """Return the page of all commands and their subcommands."""
    commands = dict(_commands(typer.main.get_command(app), _PROGRAM))
    overview = table(
        ("command", "what it does"),
        ((f"[`{name}`](#{_anchor(name)})", escape(_summary(command))) for name, command in commands.items()),
    )
    sections = "\n".join(_section(name, command) for name, command in commands.items())
    return f"{header('Commands')}<!-- page: names files of yours -->\n{overview}{_INTRODUCTION}\n{sections}"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each command with its whole name, those of subgroups after the group's other commands."""
    for verb, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {verb}")
        else:
            yield f"{name} {verb}", command


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(command: Any) -> str:
    return _paragraphs(command.help)[0]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _section(name: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    required = [option for option in options if option.required]
    usage = [name, *map(_argument_usage, arguments), *map(_required_usage, required), "[OPTIONS]"]
    examples = re.findall(r"\[bold\](.*?)\[/\]", command.epilog or "")
    rows = [(code(_metavar(argument)), "", escape(argument.help or "")) for argument in arguments]
    rows += [(code(_names(option)), _default(option), escape(option.help or "")) for option in options]
    parts = [
        f"## {name}",
        "\n\n".join(paragraph(escape(text)) for text in _paragraphs(command.help)),
        "",
        "```text",
        " ".join(usage),
        "```",
        "",
        table(("argument or option", "default", "meaning"), rows),
        "Examples:",
        "```sh",
        *examples,
        "```",
        "",
    ]
    return "\n".join(parts)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]") if not _is_switch(parameter) else ""


def _argument_usage(argument: Any) -> str:
    return _metavar(argument) if argument.required else f"[{_metavar(argument)}]"


def _required_usage(option: Any) -> str:
    return f"{option.opts[0]} {_metavar(option)}"


def _is_switch(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def _names(option: Any) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if isinstance(option.default, Enum):
        return f"{names} {{{','.join(choice.value for choice in type(option.default))}}}"
    return f"{names} {_metavar(option)}".rstrip()


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.secondary_opts and option.default is not None:
        return code(option.opts[0] if option.default else option.secondary_opts[0])
    if _is_switch(option) or option.default in (None, "", (), []):
        return ""
    return code(getattr(option.default, "value", option.default))
