"""What was prepared for rehearsals."""

from shoestring.answers.document import Command, Document, Fact, Paragraph
from shoestring.runs.rehearse.prepared import PreparedRehearsal


def document(prepared: PreparedRehearsal) -> Document:
    """Return which build of PyTorch is used from now on, and what to type next."""
    stack = f" --stack {prepared.stack}" if prepared.stack else ""
    versions = f", with the versions of {prepared.stack}" if prepared.stack else ""
    return Document(
        title="Ready to rehearse",
        sentences=[f"Rehearsals run with PyTorch {prepared.torch}{versions}. To rehearse a script, type"],
        content=[
            Command(f"shoestring rehearse SCRIPT.py --on kaggle-t4x2{stack}", "To rehearse a script"),
            Fact("folder", [Paragraph(prepared.folder)]),
        ],
    )
