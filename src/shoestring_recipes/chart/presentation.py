"""How a row is shown to the policy: the system message, the question, and the image at its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_bytes, reason
from shoestring.base.units import MIB
from shoestring_recipes.rows import character_problem

if TYPE_CHECKING:
    from PIL.Image import Image

INSTRUCTION = (
    "Answer the question about the chart. First think: name the type of chart, write its data as JSON with columns and"
    " rows, and reason in short steps, one a line. Then give the answer alone, as a number or a few words:\n"
    '<think>\n<type>bar</type>\n<table>{"columns": [...], "rows": [[...]]}</table>\nfirst step\nsecond step\n</think>\n'
    "<answer>...</answer>"
)
GUIDE_INSTRUCTION = (
    "Answer the question about the chart. First think: name the type of chart (line, bar, stacked bar, pie, histogram,"
    " scatterplot, area, stacked area, bubble or treemap), write its data as a JSON object with columns and rows, and"
    " reason in numbered steps, the last of which derives the answer. Then give the answer alone, on one line. Write"
    ' nothing else than this:\n<think>\n<type>bar</type>\n<table>{"columns": [...], "rows": [[...], ...]}</table>\n'
    "<step-1>: first step\n<step-2>: second step\n</think>\n<answer>...</answer>"
)
"""Requests what the guide's rewards count. Its own prompt has no license: `system_prompt` reads it from a file."""

TOKEN_SIDE = 14 * 2
"""Pixels per side of the square that becomes one token."""
LEAST_TOKENS = 4
"""The processor of Qwen2.5-VL enlarges smaller images (its `min_pixels`)."""

MAX_RATIO = 200
"""Of the sides of an image, for the processor of Qwen2.5-VL."""


@dataclass(frozen=True)
class Presentation:
    """How rows are shown."""

    size: tuple[int, int]
    """Width and height in pixels of every image, or the area that those of other shapes have at most."""
    keeps_aspect: bool = False
    """Whether an image keeps its ratio of width to height, to a side that is a multiple of `TOKEN_SIDE`."""
    instruction: str = INSTRUCTION

    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError if an image of this width and height has a shape that the processor refuses."""
        if self.keeps_aspect and max(size) > MAX_RATIO * min(size):
            raise ValueError(f"it has {size[0]}x{size[1]} pixels; one side is more than {MAX_RATIO} times the other")

    def fit(self, image: Image) -> Image:
        """Return the image at its size."""
        return image.resize(self._fitting_size(*image.size) if self.keeps_aspect else self.size)

    def messages(self, query: str) -> list[dict[str, str]]:
        """Return the prompt; the image, which is before the question, is not in it."""
        return [{"role": "system", "content": self.instruction}, {"role": "user", "content": query}]

    def _fitting_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size that the guide's code and Qwen's processor give to an image.

        The code enlarges or reduces every image to the area of 320 tokens, and the processor rounds its sides. An image
        that had more tokens then, which the processor of the guide permits, is rounded down instead.
        """
        from shoestring.integrations.huggingface import versions

        area = self.size[0] * self.size[1]
        scale = (area / (width * height)) ** 0.5
        least = LEAST_TOKENS * TOKEN_SIDE**2
        height, width = (max(int(side * scale), 1) for side in (height, width))
        # Rounding the short side down may exceed the ratio that the processor takes.
        limit = MAX_RATIO * min(height, width)
        rows, columns = versions.resize_for_qwen(
            min(height, limit), min(width, limit), factor=TOKEN_SIDE, min_pixels=least, max_pixels=area
        )
        # The processor makes a side of less than a token longer, and leaves the other one.
        short, long = sorted((rows, columns))
        long = min(long, area // short // TOKEN_SIDE * TOKEN_SIDE)
        return (long, short) if columns > rows else (short, long)


_FILE = "system_prompt.txt"


def choose_instruction(file: Path | None, rewards: str) -> str:
    """Return the system message in a file of the user, or the one for the rewards."""
    if file is None:
        return GUIDE_INSTRUCTION if rewards == "guide" else INSTRUCTION
    return _read_text(file, f"system_prompt={file}")


def write_instruction(folder: Path, instruction: str) -> None:
    """Write the system message of a run into the folder of its preprocessing."""
    (folder / _FILE).write_bytes(instruction.encode())


def restore_instruction(folder: Path) -> str:
    """Return the system message that `write_instruction` has written. Raises UsageError where it cannot be read."""
    return _read_text(folder / _FILE, str(folder / _FILE))


def _read_text(file: Path, name: str) -> str:
    """Return a text that is not empty. Raises UsageError, in which `name` names the file."""
    try:
        text = read_bytes(file, follow=True, max_bytes=MIB).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} cannot be read: {reason(error)}", hint="give a text file in UTF-8") from error
    problem = character_problem(text) if text.strip() else "is empty"
    if problem:
        raise UsageError(f"{name} cannot be used: it {problem}", hint="give a text file in UTF-8")
    return text
