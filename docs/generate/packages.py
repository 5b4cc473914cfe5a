"""The picture of the packages in `docs/design.md`, drawn from the layers that the import contract lists."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

GROUPS: Sequence[tuple[str, str, str]] = (
    ("Command line", "options in, answers out", "__main__"),
    ("Verbs", "one function per command", "api"),
    ("Around a run", "start it, show it", "answers"),
    ("Adapters", "trainers, libraries, platforms", "integrations"),
    ("The two halves", "what will happen, what happens", "planning"),
    ("Shared by both", "recipe, techniques, GPUs", "hardware"),
    ("Foundations", "no torch", "errors"),
)
"""From the top down: a title, its explanation, and the first package of the group in the list of layers."""

_WIDTH, _LEFT, _GAP = 720, 200, 8
_BOX_HEIGHT, _CHARACTER = 26, 7.9
# Text is light on dark shapes, so that the picture needs no background: pages may be light or dark.
_BAND, _BOX, _TEXT, _NOTE = "#37474f", "#1a6fb0", "#ffffff", "#cfd8dc"


def layers() -> list[str]:
    """Return the packages from the top down, as the import contract has them; those beside each other one by one."""
    (contract,) = (
        contract
        for contract in tomllib.loads(_PYPROJECT.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    return [name for layer in contract["layers"] for name in layer.split(" | ")]


def grouped() -> list[tuple[str, str, list[str]]]:
    """Return the title, the explanation and the packages of each group."""
    names = layers()
    starts = [names.index(first) for _, _, first in GROUPS]
    assert starts == sorted(starts) and starts[0] == 0
    ends = [*starts[1:], len(names)]
    return [
        (title, note, [name for name in names[start:end] if name != "__main__"])
        for (title, note, _), start, end in zip(GROUPS, starts, ends, strict=True)
    ]


def picture() -> str:
    """Return the picture as SVG."""
    shapes, top = list[str](), 0
    for title, note, names in grouped():
        rows = list(_rows(names))
        height = len(rows) * (_BOX_HEIGHT + _GAP) + _GAP
        middle = top + height // 2
        shapes += [
            f'<rect y="{top}" width="{_WIDTH}" height="{height}" rx="6" fill="{_BAND}"/>',
            f'<text x="12" y="{middle - 3}" font-weight="bold">{title}</text>',
            f'<text x="12" y="{middle + 13}" font-size="12" fill="{_NOTE}">{note}</text>',
        ]
        for number, row in enumerate(rows):
            y = top + _GAP + number * (_BOX_HEIGHT + _GAP)
            for x, width, name in row:
                shapes += [
                    f'<rect x="{x}" y="{y}" width="{width}" height="{_BOX_HEIGHT}" rx="4" fill="{_BOX}"/>',
                    f'<text x="{x + width / 2:g}" y="{y + 17}" class="package">{name}</text>',
                ]
        top += height + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top - 10}" width="{_WIDTH}" '
            f'height="{top - 10}" role="img" font-family="Verdana,DejaVu Sans,sans-serif" font-size="13" '
            f'fill="{_TEXT}">',
            "<title>The packages of Shoestring from the top down</title>",
            "<style>.package {font-family: DejaVu Sans Mono, Menlo, Consolas, monospace; text-anchor: middle}</style>",
            *shapes,
            "</svg>",
            "",
        ]
    )


def _rows(names: Sequence[str]) -> Iterator[list[tuple[int, int, str]]]:
    """Yield the left edges, the widths and the names of boxes in rows that are not wider than the picture."""
    row, x = list[tuple[int, int, str]](), _LEFT
    for name in names:
        width = round(len(name) * _CHARACTER) + 18
        if row and x + width > _WIDTH - _GAP:
            yield row
            row, x = [], _LEFT
        row.append((x, width, name))
        x += width + _GAP
    yield row
