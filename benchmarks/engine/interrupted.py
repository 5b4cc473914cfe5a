"""Whether a run that is stopped in the middle of an epoch and continued ends with the bits of one that was not.

    python -m benchmarks.engine.interrupted [--json OUT]

Each library saves in its own way, continues in a new process, and is used as its documentation says. A library that
cannot be imported is left out. Everything runs on the CPU:

    pip install --no-deps efficio==0.1.1 torchdata==0.11.0 pytorch-lightning==2.6.6
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from benchmarks.engine import interrupted_task
from benchmarks.engine.interrupted_task import BATCH, EPOCHS, RATE, STOP_AT, Samples, network
from torch import nn
from torch.utils.data import DataLoader

CASES = {"shuffled samples and dropout": (False, 0), "with random samples, 2 workers": (True, 2)}


def digest(weights: dict[str, Any]) -> str:
    """Return a digest of tensors in the order of their names; names of wrappers are ignored."""
    parts = [weights[name].detach().cpu().numpy().tobytes() for name in sorted(weights)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def hugging_face(folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    transformers = importlib.import_module("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.net(x), y)}

    class Stop(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_save(self, *arguments: Any, **_: Any) -> None:
            arguments[2].should_training_stop = True  # the trainer's control

    def collate(rows: Any) -> dict[str, torch.Tensor]:
        x, y = zip(*rows, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, learning_rate=RATE,
        lr_scheduler_type="constant", use_cpu=True, dataloader_num_workers=workers, dataloader_pin_memory=False,
        report_to=[], logging_strategy="no", disable_tqdm=True, save_strategy="steps", save_steps=STOP_AT, seed=0,
    )  # fmt: skip
    resume = any(folder.glob("checkpoint-*"))
    transformers.set_seed(0)
    trainer = transformers.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=Samples(noise=noise),
        data_collator=collate,
        callbacks=[Stop()] if stop else None,
    )
    trainer.train(resume_from_checkpoint=resume or None)
    assert trainer.state.global_step == (STOP_AT if stop else 30)
    return digest(trainer.model.state_dict())


def _lightning(loader: type[DataLoader[Any]], folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    lightning = importlib.import_module("pytorch_lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    checkpoint = lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=STOP_AT, save_top_k=-1)
    stored = [str(path) for path in folder.glob("*.ckpt")]
    lightning.seed_everything(0, workers=True, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, max_steps=STOP_AT if stop else -1, accelerator="cpu", logger=False, callbacks=[checkpoint],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(folder),
    )  # fmt: skip
    data = loader(Samples(noise=noise), batch_size=BATCH, shuffle=True, num_workers=workers)
    trainer.fit(module, data, ckpt_path=stored[0] if stored else None)
    assert trainer.global_step == (STOP_AT if stop else 30)
    return digest(module.state_dict())


def lightning(folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    return _lightning(DataLoader, folder, noise=noise, workers=workers, stop=stop)


def stateful_lightning(folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    loader = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return _lightning(loader, folder, noise=noise, workers=workers, stop=stop)


def efficio(folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    library = importlib.import_module("efficio")
    torch.manual_seed(0)
    net = network()
    run = library.Run(checkpoint_dir=str(folder), verbose=False)
    net, _ = run.prepare(net, torch.optim.AdamW(net.parameters(), lr=RATE))
    loader = DataLoader(Samples(noise=noise), batch_size=BATCH, shuffle=True, num_workers=workers)
    for inputs, targets in run.loop(loader, epochs=EPOCHS):
        with run.autocast():
            loss = nn.functional.mse_loss(net(inputs), targets)
        run.backward(loss)
        run.step()
        if stop and run.state.step == STOP_AT:
            os.kill(os.getpid(), 15)  # its handler saves before the next batch and ends the loop
    assert run.state.step == (STOP_AT if stop else 30) or stop
    return digest(net.state_dict())


CONTENDERS: dict[str, tuple[str, Callable[..., str] | None]] = {
    "Shoestring": ("shoestring", None),
    "Hugging Face Trainer": ("transformers", hugging_face),
    "Lightning Trainer": ("pytorch-lightning", lightning),
    "Lightning Trainer, StatefulDataLoader": ("torchdata", stateful_lightning),
    "efficio": ("efficio", efficio),
}


_MODULES = {
    "transformers": ("transformers.trainer",),
    "pytorch-lightning": ("pytorch_lightning",),
    "torchdata": ("pytorch_lightning", "torchdata.stateful_dataloader"),
    "efficio": ("efficio",),
}


def _shoestring(folder: Path, *, noise: bool, workers: int, stop: bool) -> str:
    words = [sys.executable, "-m", "shoestring", "train", interrupted_task.__file__, "--run", str(folder / "run")]
    environment = {**os.environ, "SHOESTRING_PROBE": "0", "NOISE": str(int(noise))}
    if stop:
        environment["STOP_AT"] = str(STOP_AT)
    done = subprocess.run(
        [*words, "--set", f"workers={workers}"], env=environment, capture_output=True, text=True, check=False
    )
    state = json.loads((folder / "run" / "state.json").read_text(encoding="utf-8"))
    assert state["status"] == ("paused" if stop else "finished"), done.stderr
    if stop:
        assert state["update"] % (interrupted_task.SAMPLES // BATCH), state
        return ""
    from safetensors.torch import load_file

    newest = max((folder / "run" / "checkpoints").glob("update-*"))
    return digest(load_file(newest / "model.safetensors"))


def session(name: str, folder: Path, case: tuple[bool, int], *, stop: bool) -> str:
    """Train in a new process until the stop or the end; return the digest of the weights."""
    noise, workers = case
    contender = CONTENDERS[name][1]
    if contender is None:
        return _shoestring(folder, noise=noise, workers=workers, stop=stop)
    answer = folder / "digest"
    answer.unlink(missing_ok=True)
    pid = os.fork()  # libraries are imported once
    if not pid:
        status = 1
        try:
            answer.write_text(contender(folder, noise=noise, workers=workers, stop=stop), encoding="utf-8")
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(f"{name}: the process failed")
    return answer.read_text(encoding="utf-8")


def compare(name: str, folder: Path) -> dict[str, bool]:
    """Return for each case whether the two runs end with equal bits. Two runs without a stop have to."""
    equal = {}
    for number, (title, case) in enumerate(CASES.items()):
        homes = [folder / f"{number}-{kind}" for kind in ("whole", "repeated", "stopped")]
        for home in homes:
            home.mkdir(parents=True)
        whole, repeated = (session(name, home, case, stop=False) for home in homes[:2])
        assert whole == repeated, f"{name}: two runs without a stop differ"
        session(name, homes[2], case, stop=True)
        equal[title] = session(name, homes[2], case, stop=False) == whole
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="names, with semicolons between them")
    options = parser.parse_args()
    rows = []
    for name in options.only.split(";") if options.only else CONTENDERS:
        package = CONTENDERS[name][0]
        try:
            used = version(package)
        except PackageNotFoundError:
            continue
        for module in _MODULES.get(package, ()):
            importlib.import_module(module)
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"name": name, "package": package, "version": used, "equal": compare(name, Path(folder))})
        print(rows[-1], flush=True)
    if options.json:
        result = {"date": date.today().isoformat(), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
