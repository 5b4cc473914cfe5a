"""The outcome of predictions: standard output has their rows."""

from shoestring.answers.document import Document, KeyFigure, Paragraph
from shoestring.base.units import count_text, seconds_text
from shoestring.runs.predict.predict import Predictions


def document(predictions: Predictions) -> Document:
    """Return the notes, the counts, and how to continue."""
    duration = seconds_text(predictions.seconds)
    weights = f"{predictions.recipe}: the weights in {predictions.weights} "
    weights += f"({predictions.device}, {predictions.precision}, {duration})"
    out = f" in {predictions.out}" if predictions.out else ""
    errors = f", {count_text(predictions.errors)} of them with an error" if predictions.errors else ""
    rows = "1 row" if predictions.rows == 1 else f"{count_text(predictions.rows)} rows"
    time = KeyFigure("time", duration, f"{predictions.device}, {predictions.precision}")
    counts = KeyFigure("rows", count_text(predictions.rows), f"{errors.removeprefix(', ')}{out}".strip())
    paused = f"paused: {predictions.reason}; repeat the command to continue"
    return Document(
        title=f"Predictions of {predictions.recipe}",
        status=predictions.status,
        subtitle=predictions.weights,
        sentences=[],
        content=[
            *(Paragraph(f"note: {note}") for note in predictions.notes),
            Paragraph(weights, figure=time),
            *([Paragraph(paused)] if predictions.status == "paused" else []),
            Paragraph(f"{rows}{out}{errors}", figure=counts),
        ],
    )
