"""A model that was loaded for predictions."""

from shoestring.answers import wording
from shoestring.answers.document import Document, KeyFigure, Paragraph, Section
from shoestring.base.units import count_text
from shoestring.runs.predict.loaded import LoadedModel


def document(loaded: LoadedModel) -> Document:
    """Return which weights the model has, and how large it is."""
    parameters = count_text(sum(parameter.numel() for parameter in loaded.model.parameters()))
    size = KeyFigure("parameters", parameters, type(loaded.model).__name__)
    usage = Paragraph("model.predict(inputs) returns a row for each input.", "faint")
    return Document(
        title=f"Model of {loaded.name}",
        subtitle=wording.weights(loaded.update, loaded.weights),
        sentences=[repr(loaded)],
        content=[
            Section("", [Paragraph(parameters, figure=size), usage], is_extra=True),
            *(Paragraph(note) for note in loaded.notes),
        ],
    )
