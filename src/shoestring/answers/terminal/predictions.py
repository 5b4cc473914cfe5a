"""The outcome of predictions, as messages: standard output has their rows."""

from shoestring.base.units import count_text, seconds_text
from shoestring.runs.predict.predict import Predictions


def messages(predictions: Predictions) -> list[str]:
    """Return the notes, the counts, and how to continue."""
    out = f" in {predictions.out}" if predictions.out else ""
    errors = f", {count_text(predictions.errors)} of them with an error" if predictions.errors else ""
    environment = f"{predictions.device}, {predictions.precision}, {seconds_text(predictions.seconds)}"
    lines = [
        *(f"note: {note}" for note in predictions.notes),
        f"{predictions.recipe}: the weights in {predictions.weights} ({environment})",
    ]
    if predictions.status == "paused":
        lines.append(f"paused: {predictions.reason}; repeat the command to continue")
    rows = "1 row" if predictions.rows == 1 else f"{count_text(predictions.rows)} rows"
    return [*lines, f"{rows}{out}{errors}"]
