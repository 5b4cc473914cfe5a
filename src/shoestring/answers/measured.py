"""The measured rates of a device."""

from shoestring.answers.document import Column, Document, Paragraph, Span, Table
from shoestring.base import shell
from shoestring.hardware.measured import MeasuredRates


def document(measured: MeasuredRates) -> Document:
    """Return the highest rates, the host's time, and how to use the file."""
    title = f"{measured.device.title} was measured; the rates are in {measured.file}"
    return Document(
        title=title,
        sentences=[Span(title, "strong")],
        content=[
            Table([Column(), Column()], list(measured.summary().items())),
            *(Paragraph(f"warning: {warning}", "caution") for warning in measured.warnings),
            Paragraph(f"plan with them: shoestring plan RECIPE --on {shell.quote(measured.file)}"),
        ],
    )
