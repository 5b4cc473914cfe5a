"""What Kaggle's image lacks arrives: runs on a loopback Kaggle whose sessions have the image's Python and packages.

    constraints/environment.sh kaggle .stacks/kaggle      # once
    python benchmarks/kaggle/image.py .stacks/kaggle/bin/python finetune size=tiny quantization=nf4 max_updates=2
    python benchmarks/kaggle/image.py .stacks/kaggle/bin/python chart size=tiny max_updates=2

The image is made of the environment that the tests run with: links to its packages, without those that the image lacks,
and with those that it has in older versions, which pip installs. `shoestring kaggle start --no-internet` then sends
wheels, downloaded for that Python, by the unpatched client to the loopback. The exit status is 0 if the run is
finished, the session has installed exactly what was announced, and the image is as it was.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.loopback_kaggle import Loopback  # noqa: E402

from shoestring.hardware.images import IMAGES, image_answer  # noqa: E402
from shoestring.recipe.finding import choose  # noqa: E402
from shoestring.recipe.requirements import normalized, required_extras, required_packages  # noqa: E402

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
    return [(normalized(name), version, Path(folder), first) for name, version, folder, first in rows]


def make_image(stack: Path, folder: Path) -> Path:
    """Make an environment with the image's packages in its versions, and return its Python."""
    subprocess.run([stack, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True).stdout.strip())
    is_absent = IMAGE.brought.keys() - IMAGE.packages.keys() | {"shoestring", "pip", "setuptools"}
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
    print(f"# {IMAGE.title}: Python {IMAGE.python} without {', '.join(sorted(is_absent & IMAGE.brought.keys()))},")
    print(f"# and with {', '.join(sorted(older))}", flush=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stack", type=Path, help="the Python of an environment with the packages of constraints/kaggle.txt"
    )
    parser.add_argument("recipe")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="a new folder for all files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kaggle-image-") as name:
        folder = arguments.keep.absolute() if arguments.keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        python = make_image(arguments.stack.absolute(), folder / "image")
        before = distributions(python)
        loaded, _ = choose(arguments.recipe, dict(option.split("=", 1) for option in arguments.options))
        answer = image_answer("kaggle", required_packages(required_extras(loaded)))
        assert answer is not None
        command = ["shoestring", "kaggle", "start", arguments.recipe, "--run", str(folder / "run"), "--no-internet"]
        command += ["--every", "0.5s", *(text for option in arguments.options for text in ("--set", option))]
        with Loopback(folder / "kaggle", session_seconds=600.0, python=str(python)) as loopback:
            environment = {**os.environ, **loopback.environment, "XDG_STATE_HOME": str(folder / "state")}
            print(f"$ {' '.join(command)}", flush=True)
            process = subprocess.run([sys.executable, "-m", *command], env=environment, stdin=subprocess.DEVNULL)
            session = loopback.kernels.sessions[0] if loopback.kernels.sessions else None
            log = session.log_text() if session else ""
        print("# The session's log begins with:", *log.splitlines()[:12], sep="\n")
        version, installed = brought_in(folder / "run")
        print(f"# The session had Python {version} and has installed {', '.join(sorted(installed)) or 'nothing'}.")
        planned = {f"{package.name}=={package.version}" for package in answer.lacks}
        problems = [f"kaggle start ended with exit status {process.returncode}"] if process.returncode else []
        if installed != planned:
            problems.append(f"installed {sorted(installed)}, announced {sorted(planned)}")
        if distributions(python) != before:
            problems.append("the image was changed")
    for problem in problems:
        print(f"error: {problem}")
    return 1 if problems else 0


def brought_in(run: Path) -> tuple[str, set[str]]:
    """Return the Python of the run's first session, and what it has installed beside the image."""
    files = sorted((run / "kaggle").glob("session-*.json"))
    facts = json.loads(files[0].read_text())["facts"] if files else {"python": "", "brought": {}}
    return facts["python"], {f"{normalized(name)}=={version}" for name, version in facts["brought"].items()}


if __name__ == "__main__":
    sys.exit(main())
