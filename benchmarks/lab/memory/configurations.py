"""The configurations whose memory is predicted and measured. Data only."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.lab.memory.architectures import ARCHITECTURES

from shoestring.base.settings import Settings
from shoestring.recipe.finding import load
from shoestring.recipe.options import LoadedRecipe

Work = Literal["updates", "evaluation"]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Work on one GPU, or on each of two: updates of two equal microbatches, or an evaluation of two batches."""

    kind: str
    """The group of the table."""
    model: str
    """A built-in recipe, or a name in `ARCHITECTURES`."""
    settings: Settings
    options: Mapping[str, Any] = field(default_factory=dict)
    on: str = "kaggle-t4"
    """The target whose GPU is simulated, with more memory than it has."""
    work: Work = "updates"
    first_share: float = 1.0
    """The length of the samples of the very first microbatch, as a share of that of all later ones."""
    records: bool = False
    """Whether answers contain the requests to the allocator, in order."""
    lengths: tuple[tuple[int, ...], ...] = ()
    """The tokens of the microbatches of each update, if they differ; at most those of `seq_len`."""

    @property
    def id(self) -> str:
        settings, default = self.settings, Settings()
        words = [self.model, *(f"{name}={value}" for name, value in self.options.items()), str(settings.micro_batch)]
        words += [str(settings.precision)]
        words += [
            f"{name}={value}"
            for name, value in settings.json().items()
            if name not in ("micro_batch", "precision", "logical_shards") and value != getattr(default, name)
            if (name, value) != ("checkpointing", "no")
        ]
        words += [self.on] if self.on != "kaggle-t4" else []
        return " ".join([*words, *([self.work] if self.work != "updates" else [])])

    def load(self, folder: Path, effective_batch: int | None = None) -> LoadedRecipe:
        """Load the recipe, by default for updates of two microbatches; the configuration of a model is written into
        `folder`."""
        reference = self.model
        if self.model in ARCHITECTURES:
            file = folder / f"{self.model}.json"
            file.write_text(json.dumps(ARCHITECTURES[self.model]), encoding="utf-8")
            reference = f"hf:{file}"
        assert self.settings.micro_batch
        samples = effective_batch or 2 * self.settings.micro_batch * (self.settings.gpus or 1)
        return load(reference, {**self.options, "effective_batch": samples})

    def json(self) -> dict[str, Any]:
        return {**vars(self), "options": dict(self.options), "settings": self.settings.json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Configuration":
        lengths = tuple(map(tuple, values["lengths"]))
        return cls(**{**values, "settings": Settings.from_json(values["settings"]), "lengths": lengths})


MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (4, {"seq_len": 512}),
    "bert-base": (16, {"seq_len": 256}),
    "vit-base": (16, {}),
    "resnet-50": (16, {}),
    "llama-1b": (1, {"seq_len": 512}),
    "qwen2.5-0.5b": (2, {"seq_len": 512}),
    "opt-125m": (4, {"seq_len": 512}),
    "gemma3-cut": (2, {"seq_len": 512}),
    "modernbert": (8, {"seq_len": 256}),
    "distilbert": (16, {"seq_len": 256}),
    "roberta-base": (8, {"seq_len": 256}),
    "deberta-v3-base": (4, {"seq_len": 256}),
    "qwen3-0.6b": (2, {"seq_len": 256}),
    "mixtral-cut": (4, {"seq_len": 256}),
    "t5-small": (8, {"seq_len": 256}),
    "bart-base": (4, {"seq_len": 256}),
    "dinov2-base": (8, {}),
    "clip-vit-b32": (16, {}),
    "swin-tiny": (8, {}),
    "segformer-b0": (4, {}),
    "convnext-tiny": (8, {}),
    "wav2vec2-base": (2, {"audio_seconds": 5.0}),
    "whisper-small": (2, {}),
    "flan-t5-base": (4, {"seq_len": 256}),
}
"""Each model with a microbatch for a small GPU."""

RECIPES: dict[str, tuple[int, dict[str, Any]]] = {
    "temporal": (256, {}),
    "temporal transformer": (256, {"architecture": "transformer"}),
    "legal": (8, {"seq_len": 256}),
    "legal hier": (4, {"architecture": "hier_bilstm_crf", "max_sentences": 64}),
    "vqa": (4, {}),
    "cloud": (2, {}),
    "finetune": (4, {}),
    "finetune dpo": (4, {"method": "dpo"}),
}
"""The first word names a built-in recipe."""

_ENCODERS = ("bert-base", "roberta-base", "distilbert", "modernbert", "deberta-v3-base")
_DECODERS = ("gpt2", "opt-125m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma3-cut", "llama-1b", "mixtral-cut")
_TWO_STACKS = ("t5-small", "flan-t5-base", "bart-base", "whisper-small")
_IMAGES = ("vit-base", "dinov2-base", "clip-vit-b32", "swin-tiny")
_TRANSFORMERS = (*_ENCODERS, *_DECODERS, *_TWO_STACKS, *_IMAGES)


def configurations() -> list[Configuration]:
    """Return all configurations, each once."""
    return list({item.id: item for item in (*_on_one_gpu(), *_on_two_gpus(), *_evaluations())}.values())


def of_decisions() -> list[Configuration]:
    """Return those for which a plan's decisions are tried out; their microbatch is the plan's to choose."""
    items = [_of("fp16", model) for model in (*MODELS, "legal", "vqa", "cloud", "finetune") if model != "llama-1b"]
    items += [_of("fp32", model, precision="fp32") for model in ("gpt2", "bert-base", "vit-base", "resnet-50", "cloud")]
    for model in ("gpt2", "bert-base", "qwen2.5-0.5b", "t5-small", "vit-base"):
        items.append(_of("checkpointing", model, checkpointing="full"))
    lora: dict[str, Any] = {"lora_r": 16, "lora_targets": "linear", "weights": "fp16"}
    items += [_of("LoRA", model, options=lora) for model in ("llama-1b", "qwen3-0.6b", "gemma3-cut", "flan-t5-base")]
    return items


def _of(
    kind: str, model: str, *, factor: float = 1, options: Mapping[str, Any] | None = None, **settings: Any
) -> Configuration:
    """Return the configuration of a model with its microbatch times `factor`, and with changed options and settings."""
    size, own = (MODELS | RECIPES)[model]
    on, work = settings.pop("on", "kaggle-t4"), settings.pop("work", "updates")
    values = {"precision": "fp16", "checkpointing": "no", **settings}
    return Configuration(
        kind=kind,
        model=model.partition(" ")[0],
        options={**own, **(options or {})},
        settings=Settings(micro_batch=max(1, round(size * factor)), **values),
        on=on,
        work=work,
    )


def _on_one_gpu() -> Iterator[Configuration]:
    for model in (*RECIPES, *MODELS):
        yield _of("recipes" if model in RECIPES else "fp16", model)
    for model in (*RECIPES, *MODELS):
        yield _of("recipes" if model in RECIPES else "fp32", model, precision="fp32")
    for model in (*RECIPES, *MODELS):
        if not model.startswith("finetune dpo"):
            yield _of("other microbatches", model, factor=0.5 if model in ("vqa", "gemma3-cut") else 1.75)
    for model in ("legal", "vqa", *_TRANSFORMERS):
        yield _of("checkpointing", model, checkpointing="full")
    for model in ("gpt2", "bert-base", "llama-1b", "vit-base", "qwen3-0.6b", "flan-t5-base"):
        yield _of("checkpointing", model, checkpointing="4", precision="fp32")
    for model in (*RECIPES, *MODELS):
        yield _of("bf16 on an L4", model, precision="bf16", on="l4")
    yield from _adapted()
    yield from _optimizers()
    for model in ("gpt2", "distilbert", "bert-base", "temporal", "resnet-50"):
        yield _of("offload", model, offload="optimizer", precision="fp16")
    for model in ("gpt2", "bert-base", "vit-base", "opt-125m"):
        yield _of("offload", model, offload="parameters", precision="fp16", checkpointing="full")
    for model in ("gpt2", "bert-base", "t5-small", "vit-base", "resnet-50", "legal", "llama-1b", "segformer-b0"):
        yield _of("expandable segments", model, allocator="expandable")
    for size in (1, 2, 4):
        yield _of("packing", "finetune", factor=size / 4, packing="yes")
        yield _of("packing", "finetune", factor=size / 4, packing="yes", precision="bf16", on="l4")
    for model in ("gpt2", "qwen2.5-0.5b", "llama-1b", "gemma3-cut"):
        yield _of("options", model, options={"loss_chunk": 256})
    for model in ("gpt2", "bert-base", "opt-125m", "vit-base", "t5-small", "qwen3-0.6b"):
        yield _of("options", model, options={"attention": "eager"})
    for model in ("qwen2.5-0.5b", "llama-1b"):
        yield _of("options", model, options={"attention": "library"})
    yield _of("options", "qwen2.5-0.5b", options={"method": "dpo", "lora_r": 8}, factor=0.5)
    yield _of("options", "gpt2", options={"method": "dpo", "second_model": True}, factor=0.5)
    for trained_by in ("accelerate", "plain"):
        yield _of("options", "gpt2", options={"trained_by": trained_by})
    for model in ("gpt2", "bert-base", "roberta-base", "modernbert", "qwen3-0.6b", "flan-t5-base"):
        yield _of("options", model, options={"seq_len": 100}, factor=2)
    for model in ("resnet-50", "convnext-tiny", "segformer-b0", "cloud"):
        yield _of("channels last", model, memory_format="channels_last")


def _adapted() -> Iterator[Configuration]:
    for model in ("legal", *_ENCODERS, *_DECODERS, *_TWO_STACKS, "vit-base", "dinov2-base"):
        yield _of("LoRA", model, options={"lora_r": 8})
    for model in ("opt-125m", "qwen2.5-0.5b", "llama-1b", "bert-base", "flan-t5-base", "qwen3-0.6b"):
        options = {"lora_r": 16, "lora_targets": "linear", "lora_dropout": 0.05, "weights": "fp16"}
        yield _of("LoRA", model, options=options)
        yield _of("LoRA", model, options=options, checkpointing="full")
    for model in ("qwen2.5-0.5b", "llama-1b", "opt-125m", "bert-base", "qwen3-0.6b"):
        options = {"lora_r": 8, "quantization": "nf4", "weights": "fp16"}
        yield _of("4-bit weights", model, options=options)
        yield _of("4-bit weights", model, options={**options, "double_quantization": True}, checkpointing="full")
    for model in ("qwen2.5-0.5b", "llama-1b", "opt-125m", "bert-base"):
        options = {"lora_r": 8, "quantization": "nf4", "weights": "fp16", "unquantized": "own"}
        yield _of("4-bit weights", model, options=options)
        yield _of("4-bit weights", model, options=options, checkpointing="full")
    for model in ("qwen2.5-0.5b", "bert-base"):
        options = {"lora_r": 8, "quantization": "nf4", "weights": "bf16", "unquantized": "own", "lora_dtype": "bf16"}
        yield _of("4-bit weights", model, options=options, precision="bf16", on="l4")


def _optimizers() -> Iterator[Configuration]:
    for kernel in ("for-loop", "foreach", "fused"):
        for model in ("gpt2", "bert-base", "llama-1b", "vit-base", "cloud", "temporal"):
            yield _of("optimizers", model, optimizer_kernel=kernel, precision="fp32")
    for optimizer in ("adam", "sgd", "rmsprop", "adagrad", "adafactor"):
        for model in ("gpt2", "bert-base", "resnet-50"):
            yield _of("optimizers", model, options={"optimizer": optimizer})
    for model in ("gpt2", "bert-base"):
        yield _of("optimizers", model, options={"optimizer_states": "8bit"})
    for model in ("gpt2", "bert-base", "vit-base", "temporal", "resnet-50"):
        yield _of("averaged weights", model, options={"ema": 0.999})


def _on_two_gpus() -> Iterator[Configuration]:
    for sharding in ("ddp", "zero1", "zero2", "zero3"):
        for model in ("gpt2", "bert-base", "vit-base", "qwen2.5-0.5b", "t5-small", "legal"):
            for precision in ("fp16", "fp32"):
                yield _of(
                    f"two GPUs, {sharding}", model, sharding=sharding, precision=precision, gpus=2, logical_shards=2
                )
    for offload, sharding, model in (
        ("optimizer", "ddp", "gpt2"),
        ("optimizer", "zero1", "bert-base"),
        ("optimizer", "zero2", "vit-base"),
        ("optimizer", "zero3", "gpt2"),
        ("parameters", "ddp", "bert-base"),
        ("parameters", "zero1", "gpt2"),
        ("parameters", "zero2", "gpt2"),
        ("parameters", "zero3", "bert-base"),
        ("parameters", "zero3", "vit-base"),
        ("parameters", "zero3", "qwen2.5-0.5b"),
    ):
        checkpointing = "full" if model == "vit-base" else "no"
        values: dict[str, Any] = {"offload": offload, "sharding": sharding, "checkpointing": checkpointing}
        yield _of("two GPUs, offload", model, gpus=2, logical_shards=2, **values)
    for sharding in ("ddp", "zero3"):
        for model in ("gpt2", "llama-1b"):
            yield _of(f"two GPUs, {sharding}", model, sharding=sharding, gpus=2, logical_shards=2, checkpointing="full")


def _evaluations() -> Iterator[Configuration]:
    for model in MODELS:
        yield _of("evaluation", model, factor=2, work="evaluation")
    for model in ("gpt2", "bert-base", "vit-base", "resnet-50", "t5-small"):
        yield _of("evaluation", model, factor=4, work="evaluation", precision="fp32")
    for model in ("temporal", "legal", "cloud"):
        yield _of("evaluation", model, work="evaluation", precision="fp32")
