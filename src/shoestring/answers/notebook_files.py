"""The files of `shoestring notebook`: what was written, and what to do with it."""

from pathlib import Path

from shoestring.answers.document import Document, Paragraph
from shoestring.base import shell
from shoestring.base.units import bytes_text
from shoestring.remote.notebook.writing import WrittenNotebook

_KAGGLE = (
    "open it: https://www.kaggle.com/code, New Notebook, File, Import Notebook; accelerator GPU T4 x2, Run all",
    "or push it with Kaggle's client: kaggle kernels push -p {folder}",
)
_COLAB = ("open it: https://colab.research.google.com, Upload; choose the runtime T4 GPU, Run all",)


def document(written: WrittenNotebook) -> Document:
    """Return the files, and the next steps."""
    folder = Path(written.notebook).parent
    lines = []
    if written.wheels:
        lines.append(
            f"first upload what the image lacks: kaggle datasets create -p {shell.quote(Path(written.wheels))}"
        )
    lines += [step.format(folder=shell.quote(folder)) for step in (_KAGGLE if written.platform == "kaggle" else _COLAB)]
    if written.platform == "kaggle" and written.user == "USER":
        lines.append("before pushing, replace USER in kernel-metadata.json by your account, or use --user NAME")
    files = f"{written.notebook} ({bytes_text(written.bytes)}), {written.metadata}"
    return Document(title=files, sentences=[files], content=list(map(Paragraph, lines)))
