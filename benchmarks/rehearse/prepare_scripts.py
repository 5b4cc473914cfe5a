"""Make the folder of the ten scripts: the scripts, made-up data, and models of real size with random weights.

    python -m benchmarks.rehearse.prepare_scripts FOLDER --sources FOLDER [--only NAME ...]

The folder of sources has the git repositories `transformers`, `pytorch-image-models`, `diffusers`, `nanoGPT` and
`pytorch-lightning` (also bare ones, also forks that have the commits). The scripts of TRL come with the installed
package. Nothing is downloaded, and everything that is made up follows from a fixed seed. It takes 2.3 GB of disk.
"""

import argparse
import csv
import hashlib
import importlib.metadata
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rehearse.ten_scripts import SCRIPTS, Script

CLASSES = 10
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% generation %}{{ message['content'] }}<|im_end|>\n{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ACCURACY = '''"""The share of predictions that are right, in place of the metric of the same name on the hub."""

import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="accuracy", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / max(len(references), 1)}
'''
"""`evaluate.load("accuracy")` takes a folder of this name in the working directory before it asks the hub."""


def words(source: random.Random, count: int) -> str:
    """Return made-up text of so many words, of which some are frequent, as in a language."""
    return " ".join(_VOCABULARY[min(int(source.paretovariate(0.7)) - 1, len(_VOCABULARY) - 1)] for _ in range(count))


def _vocabulary() -> list[str]:
    source = random.Random(0)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    return ["".join(source.choices(syllables, k=source.randint(1, 4))) for _ in range(8000)]


_VOCABULARY = _vocabulary()


def write_script(script: Script, sources: Path, folder: Path) -> None:
    """Write the script and the files that it reads, if they are the expected ones."""
    for path, sha256 in {script.path: script.sha256, **script.others}.items():
        content = _source(script, path, sources)
        digest = hashlib.sha256(content).hexdigest()
        if digest != sha256:
            raise SystemExit(f"{script.source[0]}, {path}: sha256 {digest}, expected {sha256}")
        file = folder / (script.file if path == script.path else path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _source(script: Script, path: str, sources: Path) -> bytes:
    repository, commit = script.source
    if not commit:
        located = importlib.metadata.distribution(repository).locate_file(path)
        return Path(str(located)).read_bytes()
    command = ["git", "-C", str(sources / repository), "show", f"{commit}:{path}"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def images(folder: Path, *, counts: dict[str, int], classes: int = CLASSES, size: int = 256) -> None:
    """Write a folder of images for each part and class; those of a class are links to one of a few images."""
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(0)
    for part, count in counts.items():
        for label in range(classes):
            place = folder / part / f"class_{label}"
            place.mkdir(parents=True, exist_ok=True)
            for index in range(count // classes):
                file = place / f"{index:04}.png"
                if index < 4:
                    coarse = source.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                    Image.fromarray(coarse).resize((size, size), Image.Resampling.BILINEAR).save(file)
                else:
                    file.unlink(missing_ok=True)
                    os.link(place / f"{index % 4:04}.png", file)


def tokenizer(folder: Path, *, kind: str) -> Any:
    """Train a tokenizer on made-up text, save and return it: `bert`, `gpt2` or `qwen2`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    text = [words(random.Random(seed), 200) for seed in range(100)]
    if kind == "bert":
        trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trained.normalizer, trained.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trained.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=8000, special_tokens=special))
        ids = [(name, trained.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        trained.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
        )
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        names |= {"mask_token": "[MASK]"}
    else:
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer, trained.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trained.train_from_iterator(text, trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet))
        # After the others, as those of GPT-2 and Qwen2 are: token 0 is an ordinary one.
        trained.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    limit = {"bert": 512, "gpt2": 1024, "qwen2": 32768}[kind]
    fast = PreTrainedTokenizerFast(tokenizer_object=trained, model_max_length=limit, **names)
    if kind == "qwen2":
        fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return fast


def bert(folder: Path) -> None:
    """Save BERT base (110M parameters)."""
    from transformers import BertConfig, BertForSequenceClassification

    BertForSequenceClassification(BertConfig()).save_pretrained(folder)
    tokenizer(folder, kind="bert")


def gpt2(folder: Path) -> None:
    """Save the tokenizer for GPT-2; `run_clm.py` makes the model itself."""
    tokenizer(folder, kind="gpt2")


def vit(folder: Path) -> None:
    """Save ViT base with patches of 16 pixels (86M parameters)."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    ViTForImageClassification(ViTConfig(num_labels=CLASSES)).save_pretrained(folder)
    ViTImageProcessor().save_pretrained(folder)


def qwen2(folder: Path) -> None:
    """Save a model of the shape of Qwen2 0.5B (494M parameters)."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    trained = tokenizer(folder, kind="qwen2")
    special = {"bos_token_id": trained.eos_token_id, "eos_token_id": trained.eos_token_id}
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        **special,
    )
    model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(**special, pad_token_id=trained.pad_token_id, do_sample=True)
    model.save_pretrained(folder)


MODELS: dict[str, Callable[[Path], None]] = {"bert-base": bert, "gpt2": gpt2, "vit-base": vit, "qwen2-0.5b": qwen2}


def texts(folder: Path) -> None:
    """Write text files of one paragraph a line."""
    for part, lines in {"train": 1200, "validation": 200}.items():
        source = random.Random(part)
        (folder / f"{part}.txt").write_text("\n".join(words(source, 100) for _ in range(lines)) + "\n")


def pairs(folder: Path) -> None:
    """Write pairs of sentences with a label."""
    for part, rows in {"train": 256, "validation": 64}.items():
        source = random.Random(part)
        with (folder / f"{part}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sentence1", "sentence2", "label"])
            for _ in range(rows):
                sentences = [words(source, source.randint(10, 90)) for _ in range(2)]
                table.writerow([*sentences, source.randrange(2)])


def _messages(source: random.Random, *, turns: int, longest: int) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * turns
    return [{"role": role, "content": words(source, source.randint(10, longest))} for role in roles]


def _jsonl(folder: Path, row: Callable[[random.Random], dict[str, Any]], *, rows: int) -> None:
    for part, count in {"train": rows, "test": 16}.items():
        source = random.Random(part)
        lines = [json.dumps(row(source)) for _ in range(count)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def conversations(folder: Path) -> None:
    """Write conversations for supervised training."""
    _jsonl(folder, lambda source: {"messages": _messages(source, turns=3, longest=200)}, rows=256)


def preferences(folder: Path) -> None:
    """Write prompts with a better and a worse answer."""

    def row(source: random.Random) -> dict[str, Any]:
        prompt, better = _messages(source, turns=1, longest=300)
        _, worse = _messages(source, turns=1, longest=300)
        return {"prompt": [prompt], "chosen": [better], "rejected": [worse]}

    _jsonl(folder, row, rows=128)


def prompts(folder: Path) -> None:
    """Write prompts that the model answers itself."""
    _jsonl(folder, lambda source: {"prompt": _messages(source, turns=1, longest=200)[:1]}, rows=64)


def few_images(folder: Path) -> None:
    """Write 96 images, all of one class."""
    images(folder, counts={"train": 96}, classes=1)


def characters(folder: Path) -> None:
    """Write the text that `prepare.py` would download, and let it prepare the text."""
    place = folder / "shakespeare_char"
    (place / "input.txt").write_text(words(random.Random(0), 60_000))
    subprocess.run([sys.executable, "prepare.py"], cwd=place, check=True, stdout=subprocess.DEVNULL)


DATA: dict[str, Callable[[Path], None]] = {
    "run_clm": texts,
    "run_glue": pairs,
    "trl_sft": conversations,
    "trl_dpo": preferences,
    "trl_grpo": prompts,
    "diffusers_unconditional": few_images,
    "nanogpt": characters,
}
"""What each script needs of its own; the image classifiers share one folder of images."""


def prepare(script: Script, sources: Path, folder: Path) -> None:
    """Make a script's folder, and the models and images that its arguments name, unless they are there."""
    place = folder / script.name
    place.mkdir(parents=True, exist_ok=True)
    write_script(script, sources, place)
    if script.name.startswith("run_"):
        (place / "accuracy").mkdir(exist_ok=True)
        (place / "accuracy" / "accuracy.py").write_text(ACCURACY)
    if script.name in DATA:
        data = place / "data"
        data.mkdir(exist_ok=True)
        DATA[script.name](data)
    for name, save in MODELS.items():
        target = folder / "models" / name
        if f"../models/{name}" in script.arguments.split() and not target.exists():
            unfinished = target.with_name(f"{name}.unfinished")
            save(unfinished)
            unfinished.rename(target)
    if "../images" in script.arguments and not (folder / "images").exists():
        images(folder / "images.unfinished", counts={"train": 640, "val": 160})
        (folder / "images.unfinished").rename(folder / "images")
    origin = {"repository": script.source[0], "commit": script.source[1], "path": script.path, "sha256": script.sha256}
    if not script.source[1]:
        origin["version"] = importlib.metadata.version(script.source[0])
    (place / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")
    (place / "command").write_text(shlex.join([script.file, *shlex.split(script.arguments)]) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[script.name for script in SCRIPTS])
    options = parser.parse_args(arguments)
    for script in SCRIPTS:
        if options.only is None or script.name in options.only:
            prepare(script, options.sources.resolve(), options.folder.resolve())
            print(f"{script.name}: {options.folder / script.name}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
