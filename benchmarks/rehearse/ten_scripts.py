"""Ten training scripts of others, rehearsed on simulated GPUs: what each answers, how long it takes, what is assumed.

    python -m benchmarks.rehearse.prepare_scripts FOLDER --sources FOLDER     # once
    python -m benchmarks.rehearse.ten_scripts FOLDER [--on TARGET ...] [--only NAME ...] [--json FILE]

The scripts are unmodified, as their digests show; the data, the tokenizers and the weights are made up. Python must
have the CUDA build of PyTorch, the packages that the scripts import, and this project. The table is written after each
row; rows of an earlier call stay unless they are made again.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoestring.hardware.targets import find

RESULTS = Path(__file__).parents[1] / "results" / "rehearse-ten-scripts.json"
TARGETS = ("kaggle-t4", "kaggle-t4x2", "l4")
TRANSFORMERS = ("transformers", "3a275d3581c0ecf962f7412aa764c2047331fd6b")
"""The commit is the last before version 5.0.0 that changed the examples."""
TIMM = ("pytorch-image-models", "8ef73809f622e0031bd7f4940265734aef8b9978")
DIFFUSERS = ("diffusers", "edc37d0f294bdf79a6917664eeee516dcde23615")
NANOGPT = ("nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
LIGHTNING = ("pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
TRL = ("trl", "")
"""These scripts are a part of the installed package."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that someone else wrote, and how it is called."""

    name: str
    source: tuple[str, str]
    """The repository and the commit."""
    path: str
    """The script's path in the repository."""
    sha256: str
    arguments: str
    several: str = ""
    """Arguments that are added where there are several GPUs; `GPUS` stands for their number."""
    others: Mapping[str, str] = field(default_factory=dict)
    """The digests of other files of the repository that it reads, by path."""
    folder: str = ""
    """The folder that it shares with another call of the same script; else it has its own."""
    targets: Sequence[str] = TARGETS
    """The targets for which it makes sense."""

    @property
    def file(self) -> str:
        """The script's name in its folder."""
        return Path(self.path).name


_TRAINER = "--per_device_eval_batch_size 8 --do_train --do_eval --max_steps 6 --logging_steps 2 --report_to none"
_TRL = "--max_steps 4 --logging_steps 1 --report_to none --output_dir out --model_name_or_path ../models/qwen2-0.5b"

SCRIPTS = (
    Script(
        name="run_clm",
        source=TRANSFORMERS,
        path="examples/pytorch/language-modeling/run_clm.py",
        sha256="d55f4705f486c6a0b6d2aeb15367129efef1162b84cc60f5cbdb73ec32d4d727",
        arguments="--model_type gpt2 --tokenizer_name ../models/gpt2 --train_file data/train.txt "
        "--validation_file data/validation.txt --block_size 1024 --per_device_train_batch_size 8 --fp16 "
        f"--output_dir out {_TRAINER}",
    ),
    Script(
        name="run_glue",
        source=TRANSFORMERS,
        path="examples/pytorch/text-classification/run_glue.py",
        sha256="483b2d0d65433017422dca6f41939f621636a80f43053ee42cc1f9b65dd5a495",
        arguments="--model_name_or_path ../models/bert-base --train_file data/train.csv "
        "--validation_file data/validation.csv --max_seq_length 128 --per_device_train_batch_size 32 --fp16 "
        f"--output_dir out {_TRAINER}",
    ),
    Script(
        name="run_image_classification",
        source=TRANSFORMERS,
        path="examples/pytorch/image-classification/run_image_classification.py",
        sha256="e91ab370e3a4550c3bbc0ae698601226c298a5a2c2642952aed10ab94c18d0e7",
        arguments="--model_name_or_path ../models/vit-base --train_dir ../images/train --validation_dir ../images/val "
        f"--remove_unused_columns False --per_device_train_batch_size 64 --fp16 --output_dir out {_TRAINER}",
    ),
    Script(
        name="trl_sft",
        source=TRL,
        path="trl/scripts/sft.py",
        sha256="310f4eb5f750a8f2f1ca9ef86235455a6d1d262d1c4cf6c8261ad95090a209dc",
        arguments="--dataset_name data --learning_rate 2.0e-4 --packing --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --eos_token '<|im_end|>' --eval_strategy steps --eval_steps 2 "
        f"--use_peft --lora_r 32 --lora_alpha 16 {_TRL}",
    ),
    Script(
        name="trl_dpo",
        source=TRL,
        path="trl/scripts/dpo.py",
        sha256="faf93f88277ddb87d6f47f046756527f0c59071096f81545d249eb9fc4639d36",
        arguments="--dataset_name data --learning_rate 5.0e-7 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --eval_strategy steps --eval_steps 2 --no_remove_unused_columns "
        f"{_TRL}",
    ),
    Script(
        name="trl_grpo",
        source=TRL,
        path="trl/scripts/grpo.py",
        sha256="3d7de1a28d39c940951a1491b6d3b210190a3ddca6a29190f3b39a9f3be5692d",
        arguments="--dataset_name data --reward_funcs think_format_reward --learning_rate 1.0e-5 "
        "--per_device_train_batch_size 8 --num_generations 8 --max_completion_length 64 --use_peft --lora_r 32 "
        f"--lora_alpha 16 {_TRL}",
    ),
    Script(
        name="timm",
        source=TIMM,
        path="train.py",
        sha256="1fb02d26fe16536bc7de2c987980644353117c2b2b8046532261464093cd1ac6",
        arguments="--data-dir ../images --val-split val --model resnet50 --num-classes 10 --batch-size 128 --amp "
        "--epochs 1 --warmup-epochs 0 --workers 2 --log-interval 1 --output out",
    ),
    Script(
        name="diffusers_unconditional",
        source=DIFFUSERS,
        path="examples/unconditional_image_generation/train_unconditional.py",
        sha256="2aff7911fae3e4548377178bd2cf510b85b55ace909e1460f88748b061a6bf20",
        arguments="--train_data_dir data --resolution 128 --center_crop --random_flip --train_batch_size 16 "
        "--eval_batch_size 4 --use_ema --mixed_precision fp16 --num_epochs 1 --save_images_epochs 1 "
        "--save_model_epochs 1 --ddpm_num_inference_steps 4 --output_dir out",
    ),
    Script(
        name="nanogpt",
        source=NANOGPT,
        path="train.py",
        sha256="413bd97b40bb400a2a0d01230e2946f056c263ebac1b7281c2367d964a123085",
        others={
            "model.py": "7c01703240dbec5d554527dc666e35b3df8391d0b117fddc07afcf325a21d11c",
            "configurator.py": "5cc23aca26b4ab3c0d9e5f82740f4781f9444f42718c15abcee70d93c5aabe8f",
            "config/train_shakespeare_char.py": "9b41cdfb2c917259d796a8184d835221a349c23cd18a0a63b46da431d95d9c05",
            "data/shakespeare_char/prepare.py": "d5fbea0686d146748cf36017d6c34136a2fe9c41f065f1429529ad55a992c692",
        },
        arguments="config/train_shakespeare_char.py --n_layer=12 --n_head=12 --n_embd=768 --block_size=1024 "
        "--batch_size=12 --gradient_accumulation_steps=4 --max_iters=5 --eval_interval=5 --eval_iters=4 "
        "--log_interval=1 --compile=False",
    ),
    Script(
        name="lightning_imagenet",
        source=LIGHTNING,
        path="examples/pytorch/domain_templates/imagenet.py",
        sha256="a7892e5f7fbc0b21d1a6512a899639d69b82037bb0ecc6acfe4366e4700efcd7",
        arguments="fit --model.data_path ../images --model.arch resnet50 --model.batch_size 256 --model.workers 2 "
        "--trainer.max_epochs 2 --trainer.default_root_dir out",
        several="--trainer.devices GPUS",
    ),
)

FP16 = tuple(
    replace(
        script,
        name=f"{script.name}_fp16",
        folder=script.name,
        targets=("kaggle-t4", "kaggle-t4x2"),
        arguments=f"{script.arguments} --fp16",
    )
    for script in SCRIPTS
    if script.source == TRL
)
"""TRL trains in bfloat16 unless told otherwise, for which it asks for a GPU of compute capability 8.0; a T4 has 7.5."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


def rehearse(script: Script, target: str, folder: Path, *, updates: int, values: str, minutes: float) -> dict[str, Any]:
    """Rehearse a script for a target, and return a row of the table."""
    place = folder / (script.folder or script.name)
    options = ["--on", target, "--json", "--updates", str(updates), "--values", values]
    command = [sys.executable, "-m", "shoestring", "rehearse", *words(script, find(target).gpus, options)]
    remove_outputs(place)
    log = folder / "logs" / f"{script.name}-{target}.log"
    log.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=os.environ | ENVIRONMENT | {"HF_HOME": str(folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # so that its processes can be ended together
        )
        try:
            output, _ = process.communicate(timeout=minutes * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    seconds = round(time.monotonic() - started, 1)
    remove_outputs(place)
    row: dict[str, Any] = {"script": script.name, "target": target, "status": process.returncode, "seconds": seconds}
    try:
        answer = json.loads(output)
    except ValueError:
        return row | {"error": _last_line(log)}
    row |= _shorten(summary(answer, place), folder)
    return row | ({"error": _last_line(log)} if process.returncode else {})


def words(script: Script, gpus: int, options: Sequence[str]) -> list[str]:
    """Return what follows `shoestring rehearse`: the script, or torchrun if there are several GPUs."""
    arguments = [script.file, *shlex.split(script.arguments)]
    if gpus == 1:
        return [arguments[0], *options, "--", *arguments[1:]]
    several = shlex.split(script.several.replace("GPUS", str(gpus)))
    return ["torchrun", *options, "--", "--standalone", "--nproc_per_node", str(gpus), *arguments, *several]


def summary(answer: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return what of a rehearsal's answer belongs into the table."""
    devices = answer.get("devices") or []
    assumed = answer.get("assumed") or []
    return {
        "fits": answer.get("fits"),
        "finished": answer.get("finished"),
        "updates": answer.get("updates"),
        "end": answer.get("end"),
        "script_error": answer.get("error"),
        "peak_allocated_bytes": [device.get("peak_allocated_bytes") for device in devices],
        "peak_reserved_bytes": [device.get("peak_reserved_bytes") for device in devices],
        "capacity_bytes": [device.get("capacity_bytes") for device in devices],
        "phases": answer.get("phases"),
        "out_of_memory": _out_of_memory(answer.get("out_of_memory"), place),
        "largest_holders": (answer.get("holders") or [])[:3],
        "update_seconds": (answer.get("time") or {}).get("update_seconds"),
        "host_peak_bytes": answer.get("host_peak_bytes"),
        "disk_bytes": answer.get("disk_bytes"),
        "assumed": len(assumed),
        "assumed_first": assumed[:5],
        "proposals": answer.get("proposals") or [],
    }


def _out_of_memory(event: Mapping[str, Any] | None, place: Path) -> dict[str, Any] | None:
    """Return where it was, with the innermost frame of all and the innermost one in the script's own files."""
    if event is None:
        return None
    stack = event.get("stack") or []
    own = [frame for frame in stack if _is_own(frame["file"], place)]
    names = ("device", "update", "phase", "requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes")
    return {name: event.get(name) for name in names} | {"innermost": stack[:1], "in_the_script": own[:1]}


def _is_own(file: str, place: Path) -> bool:
    """Return whether a file of a stack is the script's, not a library's."""
    return "site-packages/" not in file and (not file.startswith("/") or Path(file).is_relative_to(place))


def _shorten(value: Any, folder: Path) -> Any:
    """Return the value with paths that do not tell where this machine keeps its files."""
    if isinstance(value, dict):
        return {name: _shorten(item, folder) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item, folder) for item in value]
    if isinstance(value, str):
        return value.replace(f"{folder}/", "").rpartition("/site-packages/")[2]
    return value


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].rpartition("/site-packages/")[2][:500] if lines else ""


def remove_outputs(place: Path) -> None:
    """Remove what the script wrote into folders of its own."""
    for folder in place.glob("out*"):
        shutil.rmtree(folder)


def describe(row: Mapping[str, Any]) -> str:
    """Return a line for the terminal."""
    text: str = f"{row['script']:26}{row['target']:14}status {row['status']}  {row['seconds']:6.1f} s  "
    if "fits" not in row:
        return text + str(row.get("error", ""))
    peaks = ", ".join(f"{peak / 2**30:.2f}" for peak in row["peak_reserved_bytes"] if peak is not None)
    text += f"fits {row['fits']}, {row['updates']} updates, reserved {peaks} GiB, assumed {row['assumed']}"
    event = row["out_of_memory"]
    if event:
        frame = (event["in_the_script"] or event["innermost"] or [{"file": "?", "line": "?"}])[0]
        text += f", out of memory at update {event['update']}, {frame['file']}:{frame['line']}"
    return text + (f", {row['script_error'] or row['error']}" if "error" in row else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", nargs="+", default=TARGETS, metavar="TARGET")
    parser.add_argument("--only", nargs="+", choices=[script.name for script in (*SCRIPTS, *FP16)])
    parser.add_argument("--updates", type=int, default=8, help="stop after so many; most scripts end before")
    parser.add_argument("--values", choices=("auto", "none", "all"), default="auto")
    parser.add_argument("--minutes", type=float, default=15, help="end a rehearsal that takes longer")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    for script in (*SCRIPTS, *FP16):
        if options.only and script.name not in options.only:
            continue
        for target in options.on:
            if target in TARGETS and target not in script.targets:
                continue
            row = rehearse(
                script,
                target,
                options.folder.resolve(),
                updates=options.updates,
                values=options.values,
                minutes=options.minutes,
            )
            print(describe(row), flush=True)
            rows = [old for old in rows if (old["script"], old["target"]) != (script.name, target)] + [row]
            write(options.json, rows)
    return 0


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table so far, in the order of the scripts, with their origins."""
    names = [script.name for script in (*SCRIPTS, *FP16)]
    scripts = {
        script.name: {
            "repository": script.source[0],
            "commit": script.source[1],
            "path": script.path,
            "sha256": script.sha256,
            "arguments": script.arguments,
        }
        for script in (*SCRIPTS, *FP16)
    }
    packages = (
        "torch",
        "triton",
        "transformers",
        "trl",
        "peft",
        "accelerate",
        "timm",
        "diffusers",
        "lightning",
        "torchvision",
    )
    content = {
        "versions": {name: version(name) for name in packages},
        "scripts": scripts,
        "rows": sorted(rows, key=lambda row: (names.index(row["script"]), row["target"])),
    }
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main())
