"""Every reader of a file: a valid sample, and the function that reads it. A new reader is one row of `READERS`.

The sample is written into a folder; `file` is the one that is damaged.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from shoestring.answers.renderers.page.document import render
from shoestring.answers.report import document
from shoestring.answers.report.run import read as read_run
from shoestring.base.errors import ShoestringError
from shoestring.base.reading import read_bytes
from shoestring.hardware.cpu_rates import read_cached
from shoestring.hardware.measured_file import content as content_of_rates
from shoestring.hardware.targets import find
from shoestring.integrations.huggingface import configuration, heads
from shoestring.planning.estimate.span import Span
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.sessions import Work
from shoestring.planning.trace.record import Op
from shoestring.remote.backup.commits import CommitName, parse_commit
from shoestring.remote.backup.identity import read_identity
from shoestring.remote.kaggle.chain_file import ChainState, SessionRecord, read_chain
from shoestring.remote.kaggle.forecast import forecast
from shoestring.remote.kaggle.kernel.session_file import NAME, read_session_file
from shoestring.runs.calibrate import load_calibration
from shoestring.runs.check.run_lock import inspect_lock
from shoestring.training.checkpoint.files import sha256, with_digest
from shoestring.training.checkpoint.foreign import check_weights, load_foreign
from shoestring.training.checkpoint.light import read_light, save_light
from shoestring.training.checkpoint.manifest import add_digest
from shoestring.training.checkpoint.store import Store
from shoestring.training.data.staging import _read_record
from shoestring.training.engine.environment import require_same
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.state import TrainingState
from shoestring.training.monitor import events
from shoestring.training.monitor.time_breakdown import compute_breakdown
from shoestring.training.run_directory.config_file import read_config
from shoestring.training.run_directory.stored import StoredPlan, StoredState
from shoestring.training.saving import saved_environment
from shoestring.training.session.ledger import ledger, sessions, slowest_durations
from shoestring_recipes.chart import adapters, prediction
from shoestring_recipes.chart import data as chart
from shoestring_recipes.chart.presentation import Presentation
from shoestring_recipes.cloud import geotiff, table
from shoestring_recipes.cloud.published_weights import load_published
from shoestring_recipes.cloud.writing import encode_geotiff
from shoestring_recipes.legal import documents
from shoestring_recipes.legal.roles import SETS, class_numbers
from shoestring_recipes.rows import BadRows
from shoestring_recipes.temporal import preprocessing
from shoestring_recipes.temporal.bars import read_bars
from shoestring_recipes.temporal.features import FEATURES
from shoestring_recipes.vqa import teacher
from tests.answers.runs import PLAN
from tests.hardware.measured_files import CPU, GPU
from tests.planning.estimate.example_traces import op, update
from tests.recipes.chart.saved import make_dataset, make_row, save_dataset
from tests.recipes.cloud.images import geo_tag_options, optical_image, write_image

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 100,
    "rope_theta": 1e4,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EVENTS = [
    {"event": "session", "session": 1, "time": 1.7e9, "update": 0, "startup_seconds": 2.5, "target": "kaggle-t4"},
    {"event": "session", "session": 1, "time": 1.7e9, "update": 0, "micro_batch": 128, "target": "kaggle-t4"},
    *[
        {"event": "progress", "session": 1, "time": 1.7e9 + update, "update": update, "updates": 10, "seconds": 5.0}
        | {"epoch": 1, "loss": 1 / update, "samples": 640, "waiting_seconds": 0.5, "memory_bytes": 5e9}
        for update in (10, 20, 30, 40, 50)
    ],
    {"event": "evaluation", "session": 1, "time": 1.7e9 + 60, "update": 50, "part": "validation", "best": True}
    | {"epoch": 1, "metrics": {"loss": 0.5, "accuracy": 0.7, "majority_accuracy": 0.5}, "seconds": 1.0},
    {"event": "save", "session": 1, "time": 1.7e9 + 61, "update": 50, "bytes": 10, "seconds": 1.0, "kind": "full"},
    {"event": "oom", "session": 1, "time": 1.7e9 + 62, "update": 50, "during": "update", "done": "x", "back_to": 40},
    {"event": "stop", "session": 1, "time": 1.7e9 + 70, "update": 50, "status": "paused", "seconds": 70.0},
]
STATE = {"status": "paused", "update": 5, "total_updates": 9, "next": "x", "metrics": {"validation": {"loss": 1.0}}}
CONFIG = 'recipe = "temporal"\non = "kaggle-t4"\nlimit = "9h"\n[set]\nepochs = 3\nlora.r = 8\n'
BARS = "time,open,high,low,close,volume\n" + "".join(f"2024-01-{day:02},1,2,0.5,1.5,10\n" for day in range(1, 6))
VQA = {
    "img_id": 7,
    "image_path": "a.png",
    "question": "why?",
    "reasoning_type": "CAUSAL",
    "reasoning_weight": 5.0,
    "teacher_answer": "so",
    "teacher_reasoning": "because",
}
CHART = {
    "imgname": "a.png",
    "query": "how many?",
    "label": "3",
    "chart_type": "bar",
    "reasoning": "count",
    "table": {"columns": ["year"], "rows": [[2001]]},
}


@dataclass(frozen=True)
class Reader:
    """A function that reads a file of a folder, and a valid content of the folder."""

    name: str
    write: Callable[[Path], object]
    """Writes the sample into a folder."""
    file: str
    read: Callable[[Path], Any]
    """Reads the folder. What it returns has to have an equal `repr` for an equal file."""
    errors: type[Exception] = ShoestringError
    prepare: Callable[[Path], object] = lambda folder: None
    """Called after the file was damaged."""
    share: float = 1.0
    """The share of the usual number of examples."""


def write_texts(**contents: Any) -> Callable[[Path], None]:
    """Return a function that writes files with these texts; values other than texts are written as JSON."""

    def write(folder: Path) -> None:
        for name, content in contents.items():
            file = folder / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(content if isinstance(content, str) else json.dumps(content))

    return write


def write_run(folder: Path) -> None:
    lines = "".join(f"{json.dumps(event)}\n" for event in EVENTS)
    write_texts(**{"plan.json": PLAN, "state.json": STATE, "events.jsonl": lines, "lock": "pid 1 on x, begun 1\n"})(
        folder
    )


def reopen(folder: Path) -> Any:
    plan = StoredPlan.read(folder / "plan.json")
    assert plan is not None
    reopened = plan.reopen(folder / "plan.json", {})
    return plan.planned_memory, reopened.settings, reopened.loaded.options


def write_plan_of_temporal(folder: Path) -> None:
    plan = PLAN["plan"] | {"settings": {"micro_batch": 8, "precision": "fp32", "save_every_seconds": 600.0}}
    options = {"size": "tiny", "epochs": 2, "seed": 0, "subset": 0.5}
    stored = {"recipe": "temporal", "reference": "temporal", "digest": "", "options": options, "plan": plan}
    (folder / "plan.json").write_text(json.dumps(stored))


def read_events(folder: Path) -> Any:
    every = list(events.read(folder / "events.jsonl"))
    records = sessions(every, "running")
    return events.current(every), json.dumps(ledger(records), allow_nan=False), slowest_durations(every), repr(
        compute_breakdown(every)
    )  # fmt: skip


def training_state() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    precision = mixed_precision("fp32", torch.device("cpu"))
    return TrainingState(model=model, optimizer=optimizer, mixed_precision=precision, learning_rates=[0.1], update=4)


def write_checkpoint(folder: Path) -> None:
    state = training_state()
    state.model(torch.ones(1, 2)).sum().backward()
    state.optimizer.step()
    state.history.append({"epoch": 1, "update": 4, "metrics": {"loss": 0.5}})
    Store(folder).save(4, {**state.pack(), "environment": {"torch": "2", "threads": 1}})


def sign_checkpoint(folder: Path) -> None:
    for checkpoint in folder.glob("update-*"):
        files = [path for path in sorted(checkpoint.iterdir()) if path.name != "manifest.json"]
        entries = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
        manifest = add_digest({"format": 1, "update": 4, "files": entries})
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def restore(folder: Path) -> Any:
    restored = Store(folder).load()
    assert restored is not None
    differences = require_same(saved_environment(restored), {"torch": "2", "threads": 1}, allow_inexact=True)
    state = training_state()
    state.restore(restored.state)
    return differences, state.update, state.history, state.model.state_dict(), state.optimizer.state_dict()


def write_weights(folder: Path) -> None:
    save_light(folder, nn.Linear(2, 1), {"update": 3})


def read_weights(folder: Path) -> Any:
    model = nn.Linear(2, 1)
    return read_light(folder, model).facts, model.state_dict()


def read_published(folder: Path) -> Any:
    model = nn.Linear(2, 1)
    load_published(folder / "published.safetensors", model)
    return model.state_dict()


def write_foreign(file: str, *, is_zip: bool = True) -> Callable[[Path], None]:
    """Return a function that writes weights as torch.save does."""

    def write(folder: Path) -> None:
        weights = {"network": nn.Linear(2, 1).state_dict(), "epoch": 3}
        torch.save(weights, folder / file, _use_new_zipfile_serialization=is_zip)

    return write


def write_shards(folder: Path) -> None:
    write_foreign("pytorch_model-1.bin")(folder)
    write_texts(**{"pytorch_model.bin.index.json": {"weight_map": dict.fromkeys("ab", "pytorch_model-1.bin")}})(folder)


def read_foreign(folder: Path) -> Any:
    check_weights(folder)
    model = nn.Linear(2, 1)
    load_foreign(folder, model)
    return model.state_dict()


def write_adapters(folder: Path) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["0"], "bias": "none"}
    write_texts(**{"adapter_config.json": config})(folder)
    names = [f"base_model.model.0.lora_{name}.weight" for name in "AB"]
    save_file(dict(zip(names, (torch.ones(2, 2), torch.ones(1, 2)), strict=True)), folder / "adapter_model.safetensors")


def read_adapters(folder: Path) -> Any:
    return {name: str(value) for name, value in adapters.load_adapters(folder, nn.Sequential(nn.Linear(2, 1)))
            .state_dict().items() if "lora" in name}  # fmt: skip


def write_questions(folder: Path) -> None:
    write_image_file(folder)
    rows = [{"image": "a.png", "query": f"how many {number}?", "id": number} for number in range(3)]
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_questions(folder: Path, file: str) -> Any:
    answers = []
    for question in prediction.read_inputs(folder / file, Presentation((8, 8))):
        try:
            answers.append((question.id, question.value, question.error or question.load()["image"].tobytes()))
        except ValueError as error:
            answers.append((question.id, question.value, str(error)))
    return answers


def write_image_file(folder: Path, name: str = "a.png") -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    (folder / name).parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(folder / name)


def write_vqa(folder: Path) -> None:
    write_image_file(folder)
    (folder / teacher.NAME).write_text(f"{json.dumps(VQA)}\n" * 3)


def write_chart(folder: Path) -> None:
    write_image_file(folder, "png/a.png")
    (folder / "rows.json").write_text(json.dumps([CHART] * 10))


ARROW = "train/data-00000-of-00001.arrow"


def write_parquet(folder: Path) -> None:
    make_dataset([make_row(number) for number in range(3)]).to_parquet(folder / "train.parquet")


def read_chart(folder: Path) -> Any:
    chart._load_image.cache_clear()
    parts = chart.read_parts(folder, Presentation((8, 8)), "skip")
    return [(part[0]["label"], part[0]["table"], part[0]["image"].tobytes()) for part in parts.values()]


def predict_with_rates(folder: Path) -> Any:
    target = find(str(folder / "rates.json"))
    product = Op("aten::mm", 2 * 128**3, 3 * 4 * 128**2, "fp32", shape=(1, 128, 128, 128))
    trace = update(forward=product, backward=op(size=10**6, name="aten::tanh"), optimizer=op(size=1))
    assert target.device.measured
    return update_seconds(trace, target.device, 2), target.device.measured.json()


def read_bar_table(folder: Path) -> Any:
    return read_bars(folder / "bars.csv", BadRows("skip")).to_csv()


def write_preprocessing(folder: Path) -> None:
    zeros, ones = (len(FEATURES) * (value,) for value in (0.0, 1.0))
    scaler = preprocessing.Preprocessing(timeframes=("1 week", "1 month"), mean=zeros, deviation=ones)
    preprocessing.save(scaler, folder)


CHECKPOINT = "update-00000004"
TRIPLETS = "1,a,b,c,x.tif\n2,a,b,c,y.tif\n3,a,b,c,z.tif\n"
JUDGMENT = "".join(f"A sentence.\t{role}\n" for role in SETS["legalseg"]) + "\n"


def write_chain(folder: Path) -> None:
    previous = {"kernel": "me/run-abcdef-a", "nonce": "0" * 32}
    session = SessionRecord(number=2, nonce="1" * 32, slug="run-abcdef-b", limit_seconds=9.0, previous=previous)
    state = ChainState(user="me", base="run-abcdef", recipe="temporal", on="kaggle-t4x2", limit_seconds=9.0)
    state.sessions, state.set, state.data = [session], {"epochs": "5"}, ["me/prices:train.csv"]
    (folder / "chain.json").write_text(json.dumps(state.json()))


WORK = Work(update={"forward": Span(0.4, 0.3, 0.6)}, epoch_end={"evaluation": Span.exactly(2.0)})


def write_chain_of_run(folder: Path) -> None:
    (folder / "kaggle" / "run").mkdir(parents=True)
    write_chain(folder / "kaggle")
    write_run(folder / "kaggle" / "run")
    (folder / "kaggle" / "plan.json").write_text(json.dumps({**PLAN["plan"], "work": WORK.json()}))


def read_forecast(folder: Path) -> Any:
    answer = forecast(cast(ChainState, read_chain(folder / "kaggle")), folder / "kaggle")
    return answer and answer.json()


SESSION = {
    "format": 1,
    "nonce": "0" * 32,
    "session": 2,
    "status": "paused",
    "update": 12,
    "damaged": ["checkpoints/update-00000012/state.json: it is missing"],
    "files": {"run/plan.json": {"bytes": 3, "sha256": "a" * 64}},
}

COMMIT = {
    "run": "1" * 32,
    "update": 7,
    "files": {
        path: {"bytes": 8, "sha256": "2" * 64}
        for path in ("plan.json", "light/model.safetensors", "checkpoints/update-00000007/manifest.json")
    },
}


CPU_RATES: dict[str, Any] = {
    "format": "shoestring CPU rates 1",
    "subject": {"cpu": "A CPU", "cores": 2, "numpy": "2.0.0", "threads": {}},
    "rates": {"fp32_flops": 1e11, "bandwidth": 1e10, "spread": 0.02, "is_disturbed": False},
}


def read_commit(folder: Path) -> Any:
    return parse_commit(read_bytes(folder / "commit.json", follow=False, max_bytes=1 << 20), CommitName(1, 7, "3" * 8))


READERS = [
    Reader("session on Kaggle", write_texts(**{NAME: SESSION}), NAME, lambda folder: read_session_file(folder / NAME)),
    Reader(
        "commit",
        write_texts(**{"commit.json": with_digest({"format": 1, **COMMIT})}),
        "commit.json",
        read_commit,
        errors=(OSError, ValueError),
    ),
    Reader(
        "identity",
        write_texts(**{"backup.json": {"run": "1" * 32, "url": "/x"}}),
        "backup.json",
        lambda run: read_identity(run / "backup.json"),
    ),
    Reader("plan", write_plan_of_temporal, "plan.json", reopen),
    Reader("state", write_run, "state.json", lambda run: StoredState.read(run / "state.json")),
    Reader("config file", write_texts(**{"run.toml": CONFIG}), "run.toml", lambda run: read_config(run / "run.toml")),
    Reader("chain on Kaggle", write_chain, "chain.json", read_chain),
    *(
        Reader(f"forecast with {file}", write_chain_of_run, f"kaggle/{file}", read_forecast)
        for file in ("plan.json", "run/plan.json", "run/events.jsonl")
    ),
    Reader("events", write_run, "events.jsonl", read_events),
    Reader("lock", write_run, "lock", inspect_lock),
    *(
        Reader(f"report of {file}", write_run, file, lambda run: render(document.document(read_run(run))), share=0.2)
        for file in ("plan.json", "state.json", "events.jsonl")
    ),
    *(Reader(f"calibration with {file}", write_run, file, load_calibration) for file in ("plan.json", "events.jsonl")),
    *(
        Reader(f"checkpoint's {file}", write_checkpoint, f"{CHECKPOINT}/{file}", restore)
        for file in ("manifest.json", "state.json", "model.safetensors")
    ),
    *(
        Reader(f"signed {file}", write_checkpoint, f"{CHECKPOINT}/{file}", restore, prepare=sign_checkpoint)
        for file in ("state.json", "model.safetensors", "optimizer.safetensors")
    ),
    *(
        Reader(
            f"weights' {file}", lambda folder: save_light(folder, nn.Linear(2, 1), {"update": 3}), file, read_weights
        )
        for file in ("manifest.json", "model.safetensors")
    ),
    Reader(
        "unverified weights",
        lambda folder: save_file(nn.Linear(2, 1).state_dict(), folder / "model.safetensors"),
        "model.safetensors",
        read_weights,
    ),
    Reader(
        "published weights",
        lambda folder: save_file(nn.Linear(2, 1).state_dict(), folder / "published.safetensors"),
        "published.safetensors",
        read_published,
    ),
    *(
        Reader(f"weights in {file}", write_foreign(file, is_zip=is_zip), file, read_foreign)
        for file, is_zip in (("CR_net.pth", True), ("pytorch_model.bin", False))
    ),
    Reader("index of weights", write_shards, "pytorch_model.bin.index.json", read_foreign),
    *(
        Reader(f"adapters' {file}", write_adapters, file, read_adapters)
        for file in ("adapter_config.json", "adapter_model.safetensors")
    ),
    *(
        Reader(f"questions in {file}", write_questions, file, partial(read_questions, file=file))
        for file in ("rows.json", "rows.jsonl")
    ),
    Reader(
        "staged files", write_texts(staged={"a": [1, 2, "f"]}), "staged", lambda folder: _read_record(folder / "staged")
    ),
    *(
        Reader(
            f"measured rates of a {measured.device.kind}",
            write_texts(**{"rates.json": content_of_rates(measured)}),
            "rates.json",
            predict_with_rates,
        )
        for measured in (GPU, CPU)
    ),
    Reader(
        "rates of the CPU",
        write_texts(**{"rates.json": CPU_RATES}),
        "rates.json",
        lambda folder: read_cached(folder / "rates.json", CPU_RATES["subject"]),
    ),
    Reader("bars", write_texts(**{"bars.csv": BARS}), "bars.csv", read_bar_table),
    Reader("preprocessing of bars", write_preprocessing, preprocessing.NAME, preprocessing.load),
    Reader(
        "judgments",
        write_texts(**{"a.txt": JUDGMENT * 3}),
        "a.txt",
        lambda folder: documents.read(folder, class_numbers(SETS["legalseg"]), BadRows("skip")),
    ),
    *(
        Reader(f"answers with {file}", write_vqa, file, lambda folder: teacher.read(folder, None, BadRows("skip")))
        for file in (teacher.NAME, "a.png")
    ),
    *(Reader(f"charts with {file}", write_chart, file, read_chart) for file in ("rows.json", "png/a.png")),
    *(
        Reader(f"charts with {file}", partial(save_dataset, rows=list(map(make_row, range(3)))), file, read_chart)
        for file in ("dataset_dict.json", "train/state.json", ARROW)
    ),
    Reader("charts in Parquet", write_parquet, "train.parquet", read_chart),
    Reader(
        "triplets",
        write_texts(**{"data.csv": TRIPLETS}),
        "data.csv",
        lambda folder: table.read(folder / "data.csv", folder, BadRows("skip")),
    ),
    Reader(
        "satellite image",
        lambda folder: write_image(folder / "a.tif", optical_image(side=16)),
        "a.tif",
        lambda folder: geotiff.read_pixels(folder / "a.tif", 13).tobytes(),
        errors=geotiff.UnusableImageError,
    ),
    Reader(
        "georeference",
        lambda folder: write_image(folder / "a.tif", optical_image(side=4), extratags=geo_tag_options()),
        "a.tif",
        lambda folder: len(encode_geotiff(optical_image(side=4), geotiff.read_geo_tags(folder / "a.tif"))),
        errors=geotiff.UnusableImageError,
    ),
    Reader(
        "model configuration",
        write_texts(**{"config.json": LLAMA}),
        "config.json",
        lambda folder: heads.find_model_class(configuration.read(str(folder))),
    ),
]
