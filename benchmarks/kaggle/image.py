"""What Kaggle's image lacks arrives: runs on a loopback Kaggle whose sessions have the image's Python and packages.

    constraints/environment.sh kaggle .stacks/kaggle      # once
    python benchmarks/kaggle/image.py .stacks/kaggle/bin/python finetune size=tiny quantization=nf4 lora_r=4
    python benchmarks/kaggle/image.py .stacks/kaggle/bin/python chart size=tiny max_updates=2
    python benchmarks/kaggle/image.py .stacks/kaggle/bin/python legal size=tiny max_updates=2 --notebook

The image is made of the environment that the tests run with: links to its packages, without those that the image lacks,
and with those that it has in older versions, which pip installs. `shoestring kaggle start --no-internet` then sends
wheels, downloaded for that Python, by the unpatched client to the loopback. The exit status is 0 if the run is
finished, the session has installed exactly what the plan announced, and the image is as it was, except that a notebook
installs into it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.loopback_kaggle import Loopback  # noqa: E402
from tests.loopback_kaggle.machine import Machine  # noqa: E402

from shoestring.base.packages.requirements import required  # noqa: E402
from shoestring.hardware.images import IMAGES, image_answer  # noqa: E402
from shoestring.recipe.finding import choose  # noqa: E402
from shoestring.recipe.requirements import required_extras  # noqa: E402

IMAGE = IMAGES["kaggle"]
LIST = """
import importlib.metadata as metadata, json
for distribution in metadata.distributions():
    first = {str(file).split("/")[0] for file in distribution.files or ()}
    print(json.dumps([distribution.name, distribution.version, str(distribution.locate_file("")), sorted(first)]))
"""


def distributions(python: Path) -> list[tuple[str, str, Path, list[str]]]:
    """Return the packages of an environment: their names, versions, folders, and what of each folder is theirs."""
    output = subprocess.run([python, "-c", LIST], check=True, capture_output=True, text=True, cwd="/").stdout
    rows = (json.loads(line) for line in output.splitlines())
    return [(canonicalize_name(name), version, Path(folder), first) for name, version, folder, first in rows]


def make_image(stack: Path, folder: Path) -> Path:
    """Make an environment with the image's packages in its versions, and return its Python."""
    subprocess.run([stack, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True).stdout.strip())
    is_absent = IMAGE.additions.keys() - IMAGE.packages.keys() | {"shoestring", "pip", "setuptools"}
    older, absent = [], []
    for name, version, site, entries in distributions(stack):
        has = IMAGE.packages.get(name)
        if name in is_absent or (has and has != version.partition("+")[0]):
            (absent if name in is_absent else older).append(f"{name}=={has}")
            continue
        for entry in entries:
            if entry != ".." and not (own / entry).exists():
                (own / entry).symlink_to(site / entry)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", *older], check=True)
    print(f"# {IMAGE.title}: Python {IMAGE.python} without {', '.join(sorted(is_absent & IMAGE.additions.keys()))},")
    print(f"# and with {', '.join(sorted(older))}", flush=True)
    return python


def by_kaggle_start(recipe: str, options: list[str], folder: Path, python: Path) -> tuple[str, set[str], list[str]]:
    """Train by `kaggle start`; return the log of the session, what it has installed, and what went wrong."""
    command = [
        "shoestring",
        "kaggle",
        "start",
        recipe,
        "--run",
        str(folder / "run"),
        "--no-internet",
        "--allow-cpu",
        "--every",
        "0.5s",
    ]
    with Loopback(folder / "kaggle", session_seconds=600.0, python=str(python)) as loopback:
        status = run([*command, *options], folder, loopback.environment)
        log = loopback.kernels.sessions[0].log_text() if loopback.kernels.sessions else ""
    files = sorted((folder / "run" / "kaggle").glob("session-*.json"))
    facts = json.loads(files[0].read_text())["facts"] if files else {"python": "none", "brought": {}}
    print(f"# The session had Python {facts['python']}.")
    installed = {f"{canonicalize_name(name)}=={version}" for name, version in facts["brought"].items()}
    return log, installed, [f"kaggle start ended with exit status {status}"] if status else []


def by_notebook(recipe: str, options: list[str], folder: Path, python: Path) -> tuple[str, set[str], list[str]]:
    """The same by the cells of a notebook that install and train."""
    command = [
        "shoestring",
        "notebook",
        recipe,
        "--out",
        str(folder / "notebook"),
        "--no-internet",
        "--allow-cpu",
        "--user",
        "me",
    ]
    if status := run([*command, *options], folder, {}):
        return "", set(), [f"notebook ended with exit status {status}"]
    content = json.loads((folder / "notebook" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    parts = ("def install()", "OPTIONS = ", "shoestring.train(")
    dataset, wheels = f"datasets/me/shoestring-{recipe}-wheels", folder / "notebook" / "wheels"
    before = {(name, version) for name, version, *_ in distributions(python)}
    machine = Machine(
        folder / "machine",
        "\n\n".join(cell for part in parts for cell in cells if part in cell),
        {dataset: wheels} if wheels.is_dir() else {},
        python=str(python),
        limit_seconds=600.0,
        disk_bytes=20 * 10**9,
        has_internet=False,
        gpu=False,
    )
    status = machine.wait()
    log = machine.log_file.read_text()
    states = [json.loads(path.read_text())["status"] for path in machine.working.glob("runs/*/state.json")]
    problems = [] if (status, states) == (0, ["finished"]) else [f"the cells ended with exit status {status}: {log}"]
    after = {(name, version) for name, version, *_ in distributions(python)}
    return log, {f"{name}=={version}" for name, version in after - before if name != "shoestring"}, problems


def run(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Print and run a command, and return its exit status."""
    print(f"$ {' '.join(command)}", flush=True)
    environment = {**os.environ, **environment, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run([sys.executable, "-m", *command], env=environment, stdin=subprocess.DEVNULL).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stack", type=Path, help="the Python of an environment with the packages of constraints/kaggle.txt"
    )
    parser.add_argument("recipe")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--notebook", action="store_true", help="by a notebook in place of kaggle start")
    parser.add_argument("--keep", type=Path, help="a new folder for all files")
    arguments = parser.parse_args()
    loaded, _ = choose(arguments.recipe, dict(option.split("=", 1) for option in arguments.options))
    answer = image_answer("kaggle", required(required_extras(loaded)))
    assert answer is not None
    options = [text for option in arguments.options for text in ("--set", option)]
    with tempfile.TemporaryDirectory(prefix="kaggle-image-") as name:
        folder = arguments.keep.absolute() if arguments.keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        python = make_image(arguments.stack.absolute(), folder / "image")
        before = distributions(python)
        train = by_notebook if arguments.notebook else by_kaggle_start
        log, installed, problems = train(arguments.recipe, options, folder, python)
        if not arguments.notebook and distributions(python) != before:
            problems.append("the image was changed")
    print("# The log of the session begins with:", *log.splitlines()[:12], sep="\n")
    print(f"# The session has installed {', '.join(sorted(installed)) or 'nothing'}.")
    announced = {f"{package.name}=={package.version}" for package in answer.lacks}
    if installed != announced:
        problems.append(f"the plan announced {', '.join(sorted(announced)) or 'nothing'}")
    for problem in problems:
        print(f"error: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
