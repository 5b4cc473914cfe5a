"""The notebooks of `shoestring notebook`, executed as Kaggle and Colab would: twice, and once interrupted.

    python benchmarks/notebook/run.py --out /tmp/notebooks

Each is executed by nbclient in a virtual environment of its own without Shoestring, which sees the packages of this one
as those of Kaggle's image. The training cell of the first execution is interrupted once it trains, the second execution
continues the run to its end, and the third one finds it finished. The executed notebooks, and pages of their outputs,
are in --out.
"""

import argparse
import html
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

OPTIONS = ("size=tiny", "epochs=400", "patience=400")


def make_environment(folder: Path) -> Path:
    """Make a virtual environment that sees the packages of this one, but not Shoestring. Returns its Python."""
    venv.create(folder, with_pip=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    # Packages may be in several folders of this environment. That of an editable Shoestring is not among them.
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "image.pth").write_text("".join(f"{path}\n" for path in folders))
    python = folder / "bin" / "python"
    # An editable installation leaves a folder with data of that name beside the packages, which can be imported.
    code = "import torch, shoestring.version"
    process = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=folder, env=clean_environment())
    assert "No module named 'shoestring" in process.stderr, process.stderr
    return python


def clean_environment() -> dict[str, str]:
    """Return the environment without paths that would show this copy of Shoestring."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def execute(notebook: Path, python: Path, environment: dict[str, str], *, interrupt_run: Path | None = None) -> dict:
    """Execute a notebook and return it. The training cell is interrupted once the run in `interrupt_run` trains."""
    content = nbformat.read(notebook, 4)
    client = NotebookClient(
        content, timeout=600, km=_manager(python), resources={"metadata": {"path": notebook.parent}}
    )
    with client.setup_kernel(cleanup_kc=True, env=environment):
        for index, cell in enumerate(content.cells):
            if cell.cell_type == "code" and "shoestring.train(" in cell.source and interrupt_run:
                arguments = (interrupt_run / "state.json", client.km.provisioner.pid)
                threading.Thread(target=interrupt_when_it_trains, args=arguments, daemon=True).start()
            client.execute_cell(cell, index)
    nbformat.validate(content)
    return content


def interrupt_when_it_trains(state_file: Path, kernel: int) -> None:
    while not state_file.exists() or json.loads(state_file.read_text())["update"] < 5:
        time.sleep(0.1)
    os.kill(kernel, signal.SIGINT)


def _manager(python: Path) -> KernelManager:
    from jupyter_client.kernelspec import KernelSpec

    manager = KernelManager()
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="image", language="python")
    return manager


def texts(content: dict, containing: str) -> str:
    """Return the plain text of the outputs of the cell whose source contains a text."""
    cell = next(cell for cell in content.cells if cell.cell_type == "code" and containing in cell.source)
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join("".join(part) for part in parts)


def page(content: dict) -> str:
    """Return the outputs of a notebook as a page, as a viewer of notebooks shows them."""
    body = []
    for cell in content.cells:
        if cell.cell_type == "markdown":
            body.append(f"<div>{html.escape(cell.source)}</div>")
            continue
        body.append(f"<pre style='background:#8881;padding:6px;overflow:auto'>{html.escape(cell.source[:400])}</pre>")
        for output in cell.outputs:
            data = output.get("data", {})
            if "text/html" in data:
                body.append("".join(data["text/html"]))
            else:
                text = output.get("text") or data.get("text/plain", "")
                body.append(f"<pre style='overflow:auto'>{html.escape(''.join(text))}</pre>")
    return (
        "<!DOCTYPE html><meta charset=utf-8><meta name=color-scheme content='light dark'>"
        "<meta name=viewport content='width=device-width'><style>body{font-family:sans-serif;max-width:70em;"
        "margin:auto;padding:1em}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}</style>"
        + "\n".join(body)
    )


def try_platform(target: str, folder: Path, python: Path) -> dict:
    """Execute the notebook of a target as often as said above, and return what was seen."""
    notebook_folder = folder / target
    pairs = [argument for option in OPTIONS for argument in ("--set", option)]
    command = [
        sys.executable,
        "-m",
        "shoestring",
        "notebook",
        "temporal",
        "--on",
        target,
        "--out",
        str(notebook_folder),
        "--allow-cpu",
    ]
    subprocess.run([*command, *pairs], check=True, capture_output=True)
    environment = clean_environment()
    environment |= {"SHOESTRING_KAGGLE_ROOT": str(notebook_folder / "kaggle")}
    environment |= {"SHOESTRING_CONTENT_ROOT": str(notebook_folder / "content"), "OMP_NUM_THREADS": "1"}
    facts: dict = {"target": target, "bytes": (notebook_folder / "notebook.ipynb").stat().st_size}
    folders = ("content", "drive", "MyDrive", "shoestring") if "colab" in target else ("kaggle", "working", "runs")
    run = notebook_folder.joinpath(*folders, "temporal")
    for number, is_interrupted in enumerate((True, False, False), 1):
        started = time.monotonic()
        content = execute(
            notebook_folder / "notebook.ipynb", python, environment, interrupt_run=run if is_interrupted else None
        )
        nbformat.write(content, notebook_folder / f"executed-{number}.ipynb")
        (notebook_folder / f"executed-{number}.html").write_text(page(content))
        state = json.loads((run / "state.json").read_text())
        errors = [
            output for cell in content.cells for output in cell.get("outputs", ()) if output.output_type == "error"
        ]
        facts[f"execution {number}"] = {
            "interrupted": is_interrupted,
            "seconds": round(time.monotonic() - started, 1),
            "status": state["status"],
            "update": state["update"],
            "errors": len(errors),
            "notebook_bytes": (notebook_folder / f"executed-{number}.ipynb").stat().st_size,
        }
    site = texts(content, "install()")
    assert re.search("is ready", site), site
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    rows = []
    for target in ("kaggle-t4x2", "colab-t4"):
        python = make_environment(arguments.out / f"environment-{target}")
        rows.append(try_platform(target, arguments.out, python))
    print(json.dumps(rows, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
