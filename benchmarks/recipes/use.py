"""Train each recipe, predict for new inputs, export it, and predict again from the export without Shoestring.

    python -m benchmarks.recipes.use [--only NAME] [--json OUT]

Every step is the real command at size=tiny. The inputs have no targets. The export is loaded by onnxruntime or
transformers in a process that cannot import Shoestring, and its predictions are compared with those of `predict`.
Temporal's graph begins with features and cloud's with scaled images, so for these two the inputs of the graph are those
that the recipe makes of the same files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"

_LOAD = """
import json, os, sys
sys.modules["shoestring"] = None
import numpy
folder, inputs = sys.argv[1], json.load(open(sys.argv[2]))
os.chdir(folder)
card = open("README.md", encoding="utf-8").read()
names = {}
exec(compile(card.split("```python")[1].split("```")[0], "README.md", "exec"), names)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a recipe is trained and used."""

    train: tuple[str, ...]
    export: str
    write_inputs: Callable[[Path], Path]
    """Writes new inputs without targets into a folder, and returns the value of the option `data`."""
    graph_inputs: Callable[[Path, Path], Any]
    """Returns the inputs of the export as JSON, given the run and the inputs."""
    load: str
    """Code that predicts for `inputs` with the `names` of the model card's code, and prints a list as JSON."""
    answers: Callable[[Path], list[Any]]
    """Returns the same list from the output of `predict`."""


def rows(out: Path) -> list[dict[str, Any]]:
    file = out if out.is_file() else out / "predictions.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


# temporal


def write_bars(folder: Path) -> Path:
    from shoestring_recipes.temporal.bars import load_sample_bars

    file = folder / "bars.csv"
    load_sample_bars().tail(300).to_csv(file, index=False)
    return file


def windows(run: Path, data: Path) -> Any:
    import shoestring
    from shoestring.runs.predict.predict import make_inputs

    recipe = shoestring.load(run).recipe
    samples = [item.load() for item in make_inputs(_loaded(recipe), data)]
    return [sample[0].tolist() for sample in samples]


def _loaded(recipe: Any) -> Any:
    from types import SimpleNamespace

    from shoestring.recipe.parts import Parts

    return SimpleNamespace(parts=Parts.from_recipe(recipe))


LOAD_BARS = """
facts = json.load(open("graph.json"))
(logits,) = names["session"].run(None, {"features": numpy.array(inputs, "float32")})
print(json.dumps([facts["classes"][row.argmax()] for row in logits]))
"""


# legal

SENTENCES = [
    "The appellant filed a suit for recovery of possession on 12.03.1954.",
    "Learned counsel for the respondent submitted that the suit is barred by limitation.",
    "Section 5 of the Act provides that the period may be extended for sufficient cause.",
    "We are unable to accept this contention.",
    "The appeal is accordingly dismissed with costs.",
]


def write_judgment(folder: Path) -> Path:
    file = folder / "judgment.txt"
    file.write_text("\n".join(SENTENCES) + "\n")
    return file


LOAD_SENTENCES = """
import torch
roles = []
for before, sentence in zip(["", *inputs], inputs):
    tokens = [1, *names["tokenize"](before), 2, *names["tokenize"](sentence), 2]
    logits = names["model"](input_ids=torch.tensor([tokens])).logits[0]
    roles.append(names["model"].config.id2label[int(logits.argmax())])
print(json.dumps(roles))
"""


# vqa


def write_questions(folder: Path) -> Path:
    from PIL import Image
    from sklearn.datasets import load_digits

    lines = []
    for number in range(6):
        digit = load_digits().images[1000 + number]
        Image.fromarray((digit * 15).astype("uint8")).resize((64, 64)).save(folder / f"{number}.png")
        question = ["Trong hình là số mấy?", "Số trong hình là chẵn hay lẻ?"][number % 2]
        lines.append(json.dumps({"id": number, "image_path": f"{number}.png", "question": question}))
    file = folder / "questions.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def questions(_: Path, data: Path) -> Any:
    return [{**row, "image_path": str(data.parent / row["image_path"])} for row in rows(data)]


LOAD_QUESTIONS = """
from PIL import Image
texts = [names["answer"](Image.open(row["image_path"]).convert("RGB"), row["question"]) for row in inputs]
print(json.dumps(texts))
"""


# chart


def write_charts(folder: Path) -> Path:
    from shoestring_recipes.chart.policy import SIZES
    from shoestring_recipes.chart.synthetic import draw_chart, make_chart

    (folder / "png").mkdir()
    listed = []
    for number in range(900, 904):
        chart = make_chart(number)
        draw_chart(chart, SIZES["tiny"].pixels).save(folder / "png" / f"{number}.png")
        listed.append({"imgname": f"{number}.png", "query": chart.query})
    (folder / "charts.json").write_text(json.dumps(listed))
    return folder


def charts(_: Path, data: Path) -> Any:
    listed = json.loads((data / "charts.json").read_text())
    return [{"image": str(data / "png" / row["imgname"]), "query": row["query"]} for row in listed]


LOAD_CHARTS = """
from PIL import Image
texts = []
for row in inputs:
    names["messages"][1]["content"][1]["text"] = row["query"]
    text = names["tokenizer"].apply_chat_template(names["messages"], add_generation_prompt=True, tokenize=False)
    pixels = names["images"](images=[Image.open(row["image"]).convert("RGB")], return_tensors="pt")
    count = int(pixels["image_grid_thw"].prod()) // names["images"].merge_size**2
    tokens = names["tokenizer"](text.replace("<|image_pad|>", "<|image_pad|>" * count), return_tensors="pt")
    kinds = (tokens["input_ids"] == names["model"].config.image_token_id).int()
    output = names["model"].generate(
        **tokens, **pixels, mm_token_type_ids=kinds, do_sample=False, max_new_tokens=16,
        suppress_tokens=[names["model"].config.image_token_id],
    )
    texts.append(names["tokenizer"].decode(output[0, tokens["input_ids"].shape[1]:], skip_special_tokens=True))
print(json.dumps(texts))
"""


# cloud


def write_tiles(folder: Path) -> Path:
    import numpy as np
    import tifffile

    generator = np.random.default_rng(0)
    listed = []
    for number in range(3):
        names = {}
        for kind, bands, low, high, dtype in (("s1", 2, -25, 0, "float32"), ("s2_cloudy", 13, 0, 10_000, "uint16")):
            path = folder / f"ROIs2017_winter_{kind}" / f"{kind}_8" / f"ROIs2017_winter_{kind}_8_p{number}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            ramp = np.linspace(low, high, 32 * 32).reshape(32, 32)[None]
            pixels = np.clip(ramp + generator.normal(0, (high - low) / 20, (bands, 32, 32)), low, high).astype(dtype)
            tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="separate")
            names[kind] = path
        listed.append(names)
    return folder


def images(_: Path, data: Path) -> Any:
    import numpy as np
    import tifffile

    tiles = []
    for path in sorted(data.rglob("*_s2_cloudy_8_p*.tif")):
        cloudy = tifffile.imread(path).astype("float32").clip(0, 10_000) / 10_000
        radar = tifffile.imread(str(path).replace("s2_cloudy", "s1")).astype("float32")
        low = np.array([-25, -32.5], "float32")[:, None, None]
        tiles.append([cloudy.tolist(), ((radar.clip(low, 0) - low) / -low).tolist()])
    return tiles


LOAD_TILES = """
cloudy, radar = (numpy.array([tile[index] for tile in inputs], "float32") for index in (0, 1))
(clear,) = names["session"].run(None, {"cloudy": cloudy, "radar": radar})
print(json.dumps([tile.mean(axis=(1, 2)).tolist() for tile in clear.clip(0, 1).astype("float64")]))
"""


def mean_bands(out: Path) -> list[Any]:
    import tifffile

    files = [next(name for name in row["files"] if name.endswith(".tif")) for row in rows(out)]
    return [(tifffile.imread(out / name) / 10_000).mean(axis=(1, 2)).tolist() for name in files]


CASES = {
    "temporal": Case(
        train=("epochs=5",),
        export="onnx",
        write_inputs=write_bars,
        graph_inputs=windows,
        load=LOAD_BARS,
        answers=lambda out: [row["prediction"] for row in rows(out)],
    ),
    "legal": Case(
        train=("epochs=2",),
        export="huggingface",
        write_inputs=write_judgment,
        graph_inputs=lambda _run, _data: SENTENCES,
        load=LOAD_SENTENCES,
        answers=lambda out: [row["prediction"] for row in rows(out)],
    ),
    "vqa": Case(
        train=("epochs=5", "effective_batch=32"),
        export="huggingface",
        write_inputs=write_questions,
        graph_inputs=questions,
        load=LOAD_QUESTIONS,
        answers=lambda out: [row["text"] for row in rows(out)],
    ),
    "chart": Case(
        train=("subset=8", "epochs=1", "completion_len=16", "weights=fp32"),
        export="merged",
        write_inputs=write_charts,
        graph_inputs=charts,
        load=LOAD_CHARTS,
        answers=lambda out: [row["text"] for row in rows(out)],
    ),
    "cloud": Case(
        train=("epochs=1",),
        export="onnx",
        write_inputs=write_tiles,
        graph_inputs=images,
        load=LOAD_TILES,
        answers=mean_bands,
    ),
}


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two answers are equal; means of images, to a tenth of a count."""
    if isinstance(first, list):
        return all(abs(a - b) < 1e-5 for a, b in zip(first, second, strict=True))
    return bool(first == second)


def run_case(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Run all steps of a recipe in an empty folder, and return their seconds and what was equal."""
    run, out, inputs = folder / "run", folder / "out", folder / "inputs"
    inputs.mkdir()
    data = case.write_inputs(inputs)
    out = out if name == "cloud" else out.with_suffix(".jsonl")
    settings = [part for value in ("size=tiny", *case.train) for part in ("--set", value)]
    seconds = {}

    def step(step_name: str, *command: str) -> str:
        started = time.monotonic()
        process = subprocess.run(command, capture_output=True, text=True)
        seconds[step_name] = round(time.monotonic() - started, 1)
        if process.returncode:
            raise SystemExit(f"{name}, {step_name}: status {process.returncode}\n{process.stderr}")
        return process.stdout

    shoestring = (sys.executable, "-m", "shoestring")
    step("train", *shoestring, "train", name, "--run", str(run), *settings)
    step("predict", *shoestring, "predict", str(run), "--set", f"data={data}", "--out", str(out))
    export = json.loads(step("export", *shoestring, "export", str(run), "--to", case.export, "--json"))
    graph_inputs = folder / "graph.json"
    graph_inputs.write_text(json.dumps(case.graph_inputs(run, data)))
    printed = step("load", sys.executable, "-c", _LOAD + case.load, export["path"], str(graph_inputs))
    loaded, predicted = json.loads(printed.splitlines()[-1]), case.answers(out)
    assert len(loaded) == len(predicted) > 0
    return {
        "recipe": name,
        "format": case.export,
        "inputs": len(predicted),
        "equal": sum(map(is_equal, loaded, predicted)),
        "max_difference": export["max_difference"],
        "bytes": export["bytes"],
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="*")
    parser.add_argument("--json", type=Path, default=RESULTS / "recipes_use.json")
    arguments = parser.parse_args()
    results = []
    for name in arguments.only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run_case(name, CASES[name], Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    if not arguments.only:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
