"""Conversations that teach an answer format, made from the docstrings of Python's standard library.

    python -m benchmarks.finetune.conversations OUT [--count 400] [--seed 0] [--pairs]

OUT ending in `.jsonl` is one file with `count` rows; anything else is a folder with `train.jsonl` and, in addition to
these `count` rows, a tenth as many in `validation.jsonl`. The user shows a function with its docstring; the assistant
answers in two lines, its name and its first sentence, which `follows_format` checks. With --pairs a row has the same
`prompt`, this answer as `chosen` and one in free form as `rejected`. The same version of Python and the same seed make
the same rows. The source files are parsed, not imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FORMAT = re.compile(r"Name: \S+\nSummary: \S[^\n]*")
QUESTIONS = (
    "What does this function do?",
    "Explain this function.",
    "Please describe the following Python function.",
    "I found this in the standard library. What is it for?",
    "Help me to understand this code.",
)
FREE_FORMS = (
    "Sure! This function is called {name}. {summary}",
    "The function {name} does the following: {summary} I hope that this helps!",
    "Here is an explanation of the code. {summary} It is named {name}.",
)
CHARACTERS = range(20, 801)
"""Of a docstring: the longest rows have some 300 tokens."""
SUMMARY_CHARACTERS = range(15, 151)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the standard library."""

    name: str
    arguments: str
    docstring: str
    summary: str
    """The first sentence of the docstring, in one line."""

    @property
    def code(self) -> str:
        indented = self.docstring.replace("\n", "\n    ")
        return f'def {self.name}({self.arguments}):\n    """{indented}"""'

    @property
    def answer(self) -> str:
        return f"Name: {self.name}\nSummary: {self.summary}"


def follows_format(text: str) -> bool:
    """Return whether an answer has exactly the two lines that the conversations teach."""
    return FORMAT.fullmatch(text.strip()) is not None


@cache
def functions() -> tuple[Function, ...]:
    """Return the functions of the standard library whose docstrings are of a suitable length, each summary once."""
    by_summary: dict[str, Function] = {}
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for function in _functions_of(ast.parse(file.read_bytes())):
            by_summary.setdefault(function.summary, function)
    return tuple(by_summary.values())


def _functions_of(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        docstring = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if not isinstance(node, ast.FunctionDef) or not docstring or len(docstring) not in CHARACTERS:
            continue
        summary = re.split(r"(?<=[.!?])\s", " ".join(docstring.split("\n\n")[0].split()))[0]
        if len(summary) in SUMMARY_CHARACTERS and not node.name.startswith("_"):
            yield Function(
                name=node.name, arguments=ast.unparse(node.args), docstring=docstring, summary=summary
            )  # fmt: skip


def rows(count: int, seed: int, *, pairs: bool = False) -> list[dict[str, Any]]:
    """Return `count` different rows, as the data file has them.

    Raises ValueError if the standard library has fewer functions.
    """
    generator = random.Random(seed)
    available = functions()
    if count > len(available):
        raise ValueError(f"{count} rows: the standard library has {len(available)} suitable functions")
    chosen = generator.sample(available, count)
    return [_pair(function, generator) if pairs else _conversation(function, generator) for function in chosen]


def _conversation(function: Function, generator: random.Random) -> dict[str, Any]:
    return {"messages": [*_prompt(function, generator), {"role": "assistant", "content": function.answer}]}


def _pair(function: Function, generator: random.Random) -> dict[str, Any]:
    prompt = _prompt(function, generator)
    free_form = generator.choice(FREE_FORMS).format(name=function.name, summary=function.summary)
    answers = {"chosen": function.answer, "rejected": free_form}
    return {
        "prompt": prompt,
        **{name: [{"role": "assistant", "content": answer}] for name, answer in answers.items()},
    }


def _prompt(function: Function, generator: random.Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{generator.choice(QUESTIONS)}\n\n{function.code}"}]


def prompt_of(row: dict[str, Any]) -> list[dict[str, str]]:
    """Return the messages before the answer, of a conversation or of a pair."""
    return list(row["prompt"] if "prompt" in row else row["messages"][:-1])


def write_jsonl(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(out: Path, count: int, seed: int, *, pairs: bool = False) -> Sequence[Path]:
    """Write a file or a folder, and return the files."""
    if out.suffix == ".jsonl":
        write_jsonl(out, rows(count, seed, pairs=pairs))
        return [out]
    out.mkdir(parents=True, exist_ok=True)
    made = rows(count + max(count // 10, 1), seed, pairs=pairs)
    parts = {"train": made[:count], "validation": made[count:]}
    for name, part in parts.items():
        write_jsonl(out / f"{name}.jsonl", part)
    return [out / f"{name}.jsonl" for name in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", action="store_true")
    arguments = parser.parse_args()
    for file in write(arguments.out, arguments.count, arguments.seed, pairs=arguments.pairs):
        print(f"{len(read_jsonl(file))} rows in {file}")


if __name__ == "__main__":
    main()
