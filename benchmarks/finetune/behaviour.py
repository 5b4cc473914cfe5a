"""Fine-tune a model to answer in a format, with LoRA, NF4 and all weights, by the real commands on a CPU.

    python -m benchmarks.finetune.behaviour MODEL [--only lora nf4 "all weights"] [--updates 40] [--json OUT]

The conversations of `conversations.py` teach the format. Before and after training, `shoestring evaluate` computes the
loss of the held-out rows, and `shoestring predict` answers their prompts: the share of answers in the format, and of
those that end by themselves. With SmolLM2-135M-Instruct and two cores each training takes some eight minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.finetune.conversations import follows_format, prompt_of, read_jsonl, write, write_jsonl

RESULTS = Path(__file__).parents[1] / "results"
EFFECTIVE_BATCH = 8
ANSWER_TOKENS = 64
COMMON = ("seq_len=512", f"effective_batch={EFFECTIVE_BATCH}", "micro_batch=4", f"answer_tokens={ANSWER_TOKENS}")
CASES: dict[str, tuple[str, ...]] = {
    "lora": (),
    "nf4": ("quantization=nf4",),
    "all weights": ("lora_r=none", "learning_rate=5e-5"),
}
"""Options by name. In so few updates all weights learn little at their default rate of 2e-5."""


def shoestring(verb: str, *arguments: str, options: Sequence[str] = ()) -> tuple[str, float]:
    """Run a command, and return what it prints and its seconds.

    Raises SystemExit if it fails.
    """
    settings = [part for option in options for part in ("--set", option)]
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "shoestring", verb, *arguments, "--on", "cpu", *settings],
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"{verb} {' '.join(arguments)}: status {process.returncode}\n{process.stderr[-3000:]}")
    return process.stdout, time.monotonic() - started


def measure(weights: str, *arguments: str, held_out: Path, prompts: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the loss of the held-out rows, and what the answers to their prompts are like."""
    evaluated, _ = shoestring(
        "evaluate", weights, *arguments, "--whole", "--json", options=(*options, f"data={held_out}")
    )  # fmt: skip
    predicted, _ = shoestring("predict", weights, *arguments, options=(*options, f"data={prompts}"))
    metrics = json.loads(evaluated)["metrics"]["all"]
    return {"loss": metrics["loss"], "perplexity": metrics["perplexity"], **shares(predicted.splitlines())}


def shares(lines: Sequence[str]) -> dict[str, Any]:
    """Return the share of the answers that have the format, and of those that end by themselves."""
    answers = [json.loads(line) for line in lines]
    return {
        "answers": len(answers),
        "in_format": sum(follows_format(answer["prediction"]) for answer in answers) / len(answers),
        "stopped": sum(answer["stopped"] for answer in answers) / len(answers),
        "first_answer": answers[0]["prediction"],
    }


def run_case(model: str, case: str, data: Path, prompts: Path, folder: Path) -> dict[str, Any]:
    """Train as the case says, and return what the trained model is like."""
    run, options = folder / "run", (*COMMON, *CASES[case])
    _, seconds = shoestring(
        "train", "finetune", "--run", str(run), options=(*options, f"model={model}", f"data={data}")
    )  # fmt: skip
    state = json.loads((run / "state.json").read_text())
    assert state["status"] == "finished", state
    held_out = data / "validation.jsonl"
    after = measure(str(run), held_out=held_out, prompts=prompts, options=(f"answer_tokens={ANSWER_TOKENS}",))
    return {"case": case, "options": options, "updates": state["update"], "train_seconds": seconds, **after}


def table(before: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Format a Markdown table."""
    lines = [
        "| trained | updates | validation loss | perplexity | in the format | stopped by itself | trained in |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ({"case": "nothing", "updates": 0, "train_seconds": 0, **before}, *rows):
        cells = [
            row["case"],
            str(row["updates"]),
            f"{row['loss']:.3f}",
            f"{row['perplexity']:.2f}",
            f"{row['in_format']:.0%} of {row['answers']}",
            f"{row['stopped']:.0%}",
            f"{row['train_seconds'] / 60:.1f} min",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=20, help="held-out prompts that are answered")
    parser.add_argument("--json", type=Path, default=RESULTS / "finetune_behaviour.json")
    arguments = parser.parse_args()
    model, load_before = str(Path(arguments.model).resolve()), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data, prompts = folder / "data", folder / "prompts.jsonl"
        write(data, arguments.updates * EFFECTIVE_BATCH, seed=0)
        held_out = read_jsonl(data / "validation.jsonl")
        write_jsonl(prompts, ({"messages": prompt_of(row)} for row in held_out[: arguments.prompts]))
        before = measure(
            model,
            "--recipe",
            "finetune",
            held_out=data / "validation.jsonl",
            prompts=prompts,
            options=(f"model={model}", f"answer_tokens={ANSWER_TOKENS}"),
        )
        print(table(before, []), flush=True)
        for case in arguments.only:
            with tempfile.TemporaryDirectory() as case_folder:
                rows.append(run_case(model, case, data, prompts, Path(case_folder)))
            print(table(before, rows[-1:]).splitlines()[-1], flush=True)
            content = {
                "environment": {
                    "python": platform.python_version(),
                    "processors": os.cpu_count(),
                    "load before": load_before,
                    "load after": os.getloadavg()[0],
                    **{package: metadata.version(package) for package in ("torch", "transformers", "peft")},
                },
                "rows to train": arguments.updates * EFFECTIVE_BATCH,
                "rows held out": len(held_out),
                "before": before,
                "after": rows,
            }
            # Written after each case, so that a later failure does not lose its measurements.
            arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
