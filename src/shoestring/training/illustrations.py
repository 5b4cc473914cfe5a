"""The names and images of the examples of an evaluation, for the report: the recipe's `identify` and `illustrate`.

They are for people: nothing of the run depends on them, so what prevents them is a note and not an error.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoestring.training.checkpoint.files import remove_own
from shoestring.training.engine.memory import Failure
from shoestring.training.processes.steps import with_whole_model
from shoestring.training.run_directory.contents import EVIDENCE_FOLDER
from shoestring.training.session.stop import SessionOver
from shoestring.training.training_session import TrainingSession
from shoestring.training.undisturbed import compute_undisturbed

_KIND = "illustrations"
_SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".jpg": b"\xff\xd8\xff"}
_MOST_BYTES = 1_000_000
"""Of an image, which becomes a part of the report."""


def describe_examples(session: TrainingSession, part: str, evidence: Mapping[str, Any], *, with_images: bool) -> None:
    """Add the recipe's identifiers of the samples to the rows of the evidence of `part`.

    With images, those of the examples are written into the run's directory, and their captions and file names are added
    to the rows; those of earlier evaluations of this part are removed. There are none if no process has all weights.
    """
    parts, dataset = session.request.recipe.parts, session.data[part]
    rows = _rows(evidence, "examples", len(dataset))
    if identify := parts.evaluation.identify:
        try:
            for row in [*_rows(evidence, "samples", len(dataset)), *rows]:
                row["name"] = str(identify(dataset, row["index"]))
        except Exception as error:  # noqa: BLE001 - a name is not worth the run
            session.record.note(f"the examples of the {part} data have no names: {type(error).__name__}: {error}")
    illustrate = parts.evaluation.illustrate
    if with_images and illustrate is not None and rows:
        _illustrate(session, part, rows, illustrate)


@with_whole_model
def _illustrate(
    session: TrainingSession, part: str, rows: list[dict[str, Any]], illustrate: Callable[..., Mapping[str, bytes]]
) -> None:
    def compute() -> list[list[tuple[str, bytes]]]:
        return [_images(illustrate(session.state.model, session.data[part], row["index"])) for row in rows]

    try:
        images = compute_undisturbed(session, _KIND, compute)
        if isinstance(images, Failure):
            session.record.note(f"the examples of the {part} data have no images: out of memory: {images.message}")
            return
        folder = session.request.run.illustrations(part, session.state.update)
        _write(folder, rows, images)
    except SessionOver:
        return  # the next step of the session ends it
    except Exception as error:  # noqa: BLE001 - an image is not worth the run
        session.record.note(f"the examples of the {part} data have no images: {type(error).__name__}: {error}")


def _rows(evidence: Mapping[str, Any], name: str, count: int) -> list[dict[str, Any]]:
    """Return the rows of an entry that are about one of `count` samples."""
    rows = evidence.get(name)
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and type(row.get("index")) is int and 0 <= row["index"] < count
    ]


def _images(images: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return captions and contents. Raises ValueError for a content that is no small PNG or JPEG."""
    for caption, content in images.items():
        if len(content) > _MOST_BYTES or _suffix(content) is None:
            raise ValueError(f"the image {caption!r} is not a PNG or a JPEG of at most {_MOST_BYTES:,} bytes")
    return [(str(caption), bytes(content)) for caption, content in images.items()]


def _suffix(content: bytes) -> str | None:
    return next((suffix for suffix, signature in _SIGNATURES.items() if content.startswith(signature)), None)


def _write(folder: Path, rows: list[dict[str, Any]], images: list[list[tuple[str, bytes]]]) -> None:
    """Write the images of each row, and then remove the folders of earlier evaluations of the same part."""
    remove_own(folder, EVIDENCE_FOLDER)
    folder.mkdir(parents=True)
    try:
        for row, row_images in zip(rows, images, strict=True):
            files = []
            for number, (caption, content) in enumerate(row_images):
                name = f"{row['index']}-{number}{_suffix(content)}"
                (folder / name).write_bytes(content)
                files.append({"caption": caption, "file": name})
            row["images"] = files
    except OSError:  # a full disk needs the space for checkpoints
        remove_own(folder, EVIDENCE_FOLDER)
        raise
    for old in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        if old != folder and EVIDENCE_FOLDER.fullmatch(old.name):
            remove_own(old, EVIDENCE_FOLDER)
