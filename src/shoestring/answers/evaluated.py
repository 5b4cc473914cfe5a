"""The metrics of saved weights."""

from shoestring.answers import matrix, metrics, wording
from shoestring.answers.document import Document, Metrics, Paragraph, Section, Span
from shoestring.answers.values import lookup
from shoestring.base.units import count_text, seconds_text
from shoestring.runs.evaluate import Evaluation


def document(evaluation: Evaluation) -> Document:
    """Return the evaluated weights, their metrics by part of the data, and notes on differences from the run."""
    update = "" if evaluation.update is None else f" of update {count_text(evaluation.update)}"
    duration = seconds_text(evaluation.seconds)
    sentence = f"{evaluation.recipe}: the weights{update} in {evaluation.weights} "
    matrices = {
        part: matrix.read(lookup(evidence, "confusion_matrix")) for part, evidence in evaluation.evidence.items()
    }
    return Document(
        title=f"Metrics of {evaluation.recipe}",
        subtitle=f"{wording.weights(evaluation.update, evaluation.weights)} · {evaluation.device} · "
        f"{evaluation.precision} · {duration}",
        sentences=[Span(f"{sentence}({evaluation.device}, {evaluation.precision}, {duration})", "strong")],
        content=[
            Metrics([metrics.part(name, values) for name, values in evaluation.metrics.items()]),
            *(
                Section(f"Confusion on {part} data", [drawing], is_extra=True)
                for part, drawing in matrices.items()
                if drawing
            ),
            *([Paragraph(f"rows: {evaluation.out}")] if evaluation.out else []),
            *wording.note_lines(evaluation.notes),
        ],
    )
