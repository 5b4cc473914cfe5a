"""Train code that other people wrote: its first loss against the original's, and its bits after two kills.

    python -m benchmarks.foreign_code.run CODE [--only NAME] [--json OUT]

CODE is a folder with the repositories `nanoGPT` (karpathy) and `examples` (pytorch), and with a folder `site` that
has timm, torchvision, diffusers and torch_geometric: `pip install --no-deps --target CODE/site ...`. Their data are
replaced by random data. Each recipe is trained on the CPU without an interruption, and again with two kills
(SIGKILL) at different updates.
"""

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "foreign_code.json"

OPERATORS = """
import torch
_library = torch.library.Library("torchvision", "DEF")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""A wheel of torchvision for CUDA cannot be imported beside torch for CPUs unless its operators are defined."""


@dataclass(frozen=True, kw_only=True)
class Case:
    code: str
    files: tuple[str, ...] = ()
    """Files of the repositories that are copied beside the recipe."""
    recipe: str
    """The class that is killed and continued."""
    original: str
    """The class whose first loss is compared."""


CASES = {
    "nanogpt": Case(
        code="nanoGPT, model.py and train.py",
        files=("nanoGPT/model.py", "nanoGPT/train.py", "nanoGPT/configurator.py"),
        recipe="NanoGPT",
        original="NanoGPT",
    ),
    "vit_mixup": Case(code="timm, a ViT with Mixup and CutMix", recipe="ViT", original="ViT"),
    "unet": Case(code="diffusers, UNet2DModel", recipe="UNet", original="UNet"),
    "dcgan": Case(
        code="PyTorch's DCGAN, with a gradient penalty",
        files=("examples/dcgan/main.py",),
        recipe="DCGAN",
        original="WithoutPenalty",
    ),
    "graphs": Case(code="PyTorch Geometric, GIN", recipe="GINRecipe", original="GINRecipe"),
}


def measure(name: str, case: Case, code: Path, folder: Path) -> dict[str, Any]:
    """Return the row of one case, trained in `folder`."""
    for file in case.files:
        shutil.copy(code / file, folder)
    recipe_file = Path(shutil.copy(HERE / f"{name}.py", folder))
    (folder / "sitecustomize.py").write_text(OPERATORS)
    tokens = folder / "data" / "random"
    tokens.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, 96, 4096).astype(np.uint16).tofile(tokens / f"{split}.bin")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(folder), str(code / "site"), str(HERE.parents[1] / "src"), str(HERE.parents[1])]
        ),
        "OMP_NUM_THREADS": "1",
    }

    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "shoestring", *arguments]

    def train(run: Path, *, kill_after: int | None = None, recipe: str = case.recipe) -> None:
        settings = ("--set", "save_every_updates=3", "--set", "precision=fp32")
        arguments = command("train", f"{recipe_file}:{recipe}", "--run", str(run), "--on", "cpu", *settings)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(arguments, env=environment, cwd=folder, stderr=log, stdout=log)
            while process.poll() is None:
                if kill_after and _checkpoint(run) >= kill_after:
                    process.send_signal(signal.SIGKILL)
                time.sleep(0.02)
        if process.returncode != (-signal.SIGKILL if kill_after else 0):
            raise RuntimeError(f"{name}: status {process.returncode}\n{(folder / 'log').read_text()}")

    whole, killed, first = folder / "whole", folder / "killed", folder / "first"
    started_at = time.monotonic()
    train(whole)
    seconds = time.monotonic() - started_at
    train(killed, kill_after=3)
    train(killed, kill_after=12)
    train(killed)
    if case.original != case.recipe:
        train(first, recipe=case.original)
    else:
        first = whole
    replay = subprocess.run(
        command("replay", str(first), "--update", "1", "--json"), env=environment, capture_output=True, check=True
    )
    original = subprocess.run(
        [sys.executable, "-m", "benchmarks.foreign_code.originals", name, f"{recipe_file}:{case.original}"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if original.returncode:
        raise RuntimeError(f"{name}: {original.stderr}")
    return {
        "code": case.code,
        "lines": count_lines(recipe_file, case.recipe),
        "updates": json.loads((whole / "state.json").read_text())["update"],
        "first_loss": json.loads(replay.stdout)["loss"],
        "original_first_loss": float(original.stdout.split()[-1]),
        "equal_bits": digest(whole) == digest(killed),
        "seconds": round(seconds, 1),
    }


def _checkpoint(run: Path) -> int:
    """Return the update of the newest checkpoint."""
    folders = [*(run / "checkpoints").glob("update-*")] if run.exists() else []
    return max((int(folder.name.removeprefix("update-")) for folder in folders), default=0)


def digest(run: Path) -> str:
    """Return a digest of the weights and the optimizer's states after the last update."""
    newest = max((run / "checkpoints").glob("update-*"))
    return sha256(b"".join(file.read_bytes() for file in sorted(newest.glob("*.safetensors")))).hexdigest()


def count_lines(file: Path, recipe: str) -> int:
    """Return the lines of the recipe's class that are not empty."""
    source = file.read_text()
    (node,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == recipe]
    return sum(bool(line.strip()) for line in source.splitlines()[node.lineno - 1 : node.end_lineno])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", type=Path)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = json.loads(arguments.json.read_text()) if arguments.only and arguments.json.exists() else {}
    for name, case in CASES.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = measure(name, case, arguments.code.resolve(), Path(folder))
            print(json.dumps({name: rows[name]}, indent=2), flush=True)
    arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
