"""An exported folder."""

from shoestring.answers import wording
from shoestring.answers.document import Document, Items, KeyFigure, Paragraph, Section, Span
from shoestring.answers.values import UNKNOWN
from shoestring.base.units import bytes_text, count_text
from shoestring.runs.export.export import Export


def document(export: Export) -> Document:
    """Return the folder, its files, the difference from the model, and notes on the model."""
    weights = "the weights" + ("" if export.update is None else f" of update {count_text(export.update)}")
    size, difference = bytes_text(export.bytes), f"{export.max_difference:.3g}"
    return Document(
        title=f"{export.recipe} as {export.format}",
        subtitle=UNKNOWN if export.update is None else weights,
        sentences=[Span(f"{export.recipe}: {weights} as {export.format}: {export.path}", "strong")],
        content=[
            Paragraph(
                f"{size}: {', '.join(export.files)}",
                figure=KeyFigure("size", size, f"{count_text(len(export.files))} files in {export.path}"),
            ),
            Paragraph(
                f"largest difference of an output from the model's: {difference}",
                figure=KeyFigure("largest difference of an output", difference, "from the model's"),
            ),
            Section("files", [Items(export.files)], is_folded=True, is_extra=True),
            *wording.note_lines(export.notes),
        ],
    )
