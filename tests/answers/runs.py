"""Synthetic runs: one with a pause, a kill, an out-of-memory, a damaged checkpoint and a finish, and two short ones."""

import base64
import json
import math
import random

T4 = 15_642_329_088
MIB = 2**20
PLAN = {
    "recipe": "temporal",
    "reference": "temporal",
    "options": {"size": "full", "epochs": 10, "effective_batch": 256, "seed": 0, "data": "data/edges.csv"},
    "plan": {
        "verdict": "fits",
        "target": "kaggle-t4",
        "settings": {"micro_batch": 128, "precision": "fp16", "save_every_seconds": 600.0, "keep_checkpoints": 2},
        "memory": {
            "target": "kaggle-t4",
            "settings": {"micro_batch": 128, "precision": "fp16"},
            "parameters": {"total": 41_532_416, "trainable": 41_532_416},
            "peak_bytes": 5876 * MIB,
            "low_bytes": 5600 * MIB,
            "high_bytes": 6500 * MIB,
            "capacity_bytes": T4,
            "fits": True,
            "parts": [
                {"name": "activations", "bytes": 4700 * MIB, "source": "trace"},
                {"name": "optimizer", "bytes": 317 * MIB, "source": "trace"},
                {"name": "weights", "bytes": 159 * MIB, "source": "trace"},
                {"name": "gradients", "bytes": 159 * MIB, "source": "trace"},
                {"name": "CUDA context", "bytes": 321 * MIB, "source": "measured on a T4"},
                {"name": "fragmentation", "bytes": 220 * MIB, "source": "allocator simulation"},
            ],
        },
        "time": {
            "update_seconds": 0.46,
            "epoch_seconds": 138.0,
            "total_seconds": 1380.0,
            "low_update_seconds": 0.38,
            "low_epoch_seconds": 114.0,
            "low_total_seconds": 1140.0,
            "high_update_seconds": 0.62,
            "high_epoch_seconds": 186.0,
            "high_total_seconds": 1860.0,
        },
        "sessions": [{"hours": 0.4, "updates": 3000, "epochs": 10}],
        "disk": {
            "full_checkpoint_bytes": 476 * MIB,
            "light_checkpoint_bytes": 159 * MIB,
            "peak_bytes": 1600 * MIB,
            "limit_bytes": 20_000 * MIB,
            "fits": True,
        },
        "reasons": [
            "fp16: a T4 has no bf16 units; autocast with loss scaling halves the activations",
            "micro_batch=128: the fastest that leaves 10% of the memory free; 256 would need 10.6 GiB",
            "a save every 10 min costs at most 0.4% of the time",
        ],
        "alternatives": ["fp32 with micro_batch=64: fits, 2.1 times slower"],
    },
}
RED_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
"""A PNG of one pixel."""
BEGIN = 1_760_000_000.0


class Writer:
    """Appends events with a simulated clock."""

    def __init__(self, path):
        self.path, self.time, self.session = path, BEGIN, 0

    def emit(self, event, **fields):
        with self.path.open("a") as file:
            file.write(json.dumps({"time": self.time, "session": self.session, "event": event, **fields}) + "\n")

    def begin(self, update):
        self.session += 1
        self.emit(
            "session",
            update=update,
            limit_seconds=43200,
            target="kaggle-t4",
            device="Tesla T4",
            micro_batch=128,
            precision="fp16",
            versions={"python": "3.12.3", "torch": "2.7.1", "shoestring": "0.1.0"},
            pid=4711,
        )


def train(writer, first, last, noise):
    """Write progress from `first` to `last`, with an evaluation every 300 updates."""
    for update in range(first + 5, last + 1, 5):
        progress = update / 3000
        seconds = 2.4 + 0.25 * noise.random() + (6 if update == first + 5 else 0)
        writer.time += seconds
        writer.emit(
            "progress",
            update=update,
            epoch=update // 300,
            updates=5,
            loss=0.35 + 0.6 * math.exp(-5 * progress) + 0.03 * noise.gauss(0, 1),
            learning_rate=1e-3 * min(1, update / 150) * 0.5 * (1 + math.cos(math.pi * progress)),
            gradient_norm=0.6 + 1.5 * math.exp(-8 * progress) + 0.15 * noise.random(),
            seconds=seconds,
            samples=1280,
            memory_bytes=(5400 + min(update, 400) // 2) * MIB,
            skipped=int(update == first + 5),
        )
        if update % 300 == 0:
            writer.time += 8
            writer.emit(
                "evaluation",
                update=update,
                epoch=update // 300,
                part="validation",
                metrics=metrics(progress, noise),
                seconds=8.0,
                best=progress <= 0.8,
            )
        if update % 250 == 0:
            writer.time += 1.5
            writer.emit("save", update=update, bytes=476 * MIB, seconds=1.5, kind="full")


def metrics(progress, noise):
    return {
        "loss": 0.42 + 0.5 * math.exp(-5 * progress) + (0.15 * (progress - 0.8) if progress > 0.8 else 0),
        "accuracy": 0.84 - 0.35 * math.exp(-4 * progress) + 0.01 * noise.random(),
        "majority_accuracy": 0.612,
        "macro_f1": 0.71 - 0.45 * math.exp(-3 * progress) + 0.01 * noise.random(),
        "majority_macro_f1": 0.253,
        "confusion": [[410, 32, 8], [51, 260, 20], [12, 31, 76]],
    }


def write_evidence(folder):
    """Write the image of an example, and return evidence of each kind."""
    folder.mkdir(parents=True)
    (folder / "4-0.png").write_bytes(RED_PIXEL)
    example = {"group": "best", "index": 4, "name": "a_long_name_of_a_file" * 4, "scores": {"psnr": 31.0}}
    return {
        "confusion_matrix": {"labels": ["sell", "hold", "buy"], "counts": [[410, 32, 8], [51, 260, 20], [12, 31, 76]]},
        "histograms": {"psnr": {"edges": [28.0, 29.0, 30.0, 31.0], "counts": [2, 9, 4]}},
        "examples": [
            {**example, "texts": {"answer": "a", "reasoning": "because " * 40}},
            {**example, "images": [{"caption": "cloudy", "file": "4-0.png"}]},
        ],
        "samples": [example],
    }


def stop(writer, update, status, reason, seconds, updates):
    fields = {"saving_seconds": 0.004 * seconds, "evaluating_seconds": 0.03 * seconds}
    writer.emit("stop", update=update, status=status, reason=reason, seconds=seconds, updates=updates, **fields)


def write_state(path, **fields):
    (path / "state.json").write_text(json.dumps(fields))


def finished(path):
    """Write four sessions: out of memory once and paused, killed by the platform, paused, finished."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.json").write_text(json.dumps(PLAN))
    writer, noise = Writer(path / "events.jsonl"), random.Random(0)
    writer.begin(0)
    writer.emit("oom", update=3, micro_batch=128, retried_with=64, message="asked for 1.20 GiB, 0.70 GiB were free")
    train(writer, 0, 1100, noise)
    stop(writer, 1100, "paused", "the session's limit of 12 h is near", writer.time - BEGIN, 1100)
    writer.time += 1500
    writer.begin(1100)
    train(writer, 1100, 1640, noise)
    with writer.path.open("a") as file:
        file.write('{"time": 1760002000.0, "session": 2, "event": "prog\n')
    writer.time += 400
    writer.begin(1500)
    writer.emit("damaged", path="checkpoints/update-00001640", file="model.safetensors", why="sha256 differs")
    session_start = writer.time
    train(writer, 1500, 2400, noise)
    stop(writer, 2400, "paused", "stopped by SIGTERM", writer.time - session_start, 900)
    writer.time += 900
    writer.begin(2400)
    session_start = writer.time
    train(writer, 2400, 3000, noise)
    test = metrics(1, noise)
    evidence = write_evidence(path / "evidence" / "test-00003000")
    writer.emit(
        "evaluation", update=3000, epoch=10, part="test", metrics=test, seconds=9.0, best=False, evidence=evidence
    )
    writer.emit("save", update=3000, bytes=159 * MIB, seconds=0.4, kind="light")
    stop(writer, 3000, "finished", "all updates are done", writer.time - session_start, 600)
    write_state(
        path,
        status="finished",
        update=3000,
        total_updates=3000,
        epoch=10,
        reason="all updates are done",
        next="",
        metrics={"validation": metrics(0.8, noise), "test": test},
    )
    return path


def just_started(path):
    """Write a first session without a completed update."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.json").write_text(json.dumps(PLAN))
    Writer(path / "events.jsonl").begin(0)
    write_state(path, status="running", update=0, total_updates=3000, epoch=0)
    return path


def failed(path):
    """Write one failed session of a recipe without validation data."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "plan.json").write_text(json.dumps(PLAN))
    writer = Writer(path / "events.jsonl")
    writer.begin(0)
    train(writer, 0, 200, random.Random(1))
    stop(writer, 200, "failed", "loss is nan\nat update 201", 100.0, 200)
    command = "shoestring train temporal --run runs/temporal"
    write_state(path, status="failed", update=200, total_updates=3000, epoch=0, reason="loss is nan", next=command)
    return path
