"""The measured cases: recipes and Hugging Face configurations with settings, the most informative first. Data only."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.base.settings import Settings
from shoestring.recipe.finding import load
from shoestring.recipe.options import LoadedRecipe


@dataclass(frozen=True, kw_only=True)
class Case:
    """An update of two equal microbatches with these settings."""

    model: str
    """A built-in recipe, or a name in `CONFIGURATIONS`."""
    settings: Settings
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        settings = self.settings
        words = [self.model, *(f"{name}={value}" for name, value in self.options.items())]
        words += [f"{settings.micro_batch}x2", str(settings.precision)]
        words += [f"checkpointing={settings.checkpointing}"] if settings.checkpointing != "no" else []
        words += [settings.optimizer_kernel] if settings.optimizer_kernel else []
        return " ".join(words)

    @property
    def missing(self) -> str:
        """The name of a required module that is not installed; empty if the case can run."""
        required = [] if self.model in ("temporal", "cloud") else ["transformers"]
        required += ["peft"] if self.model == "chart" or "lora.r" in self.options else []
        required += ["pandas"] if self.model == "temporal" else []
        return next((name for name in required if importlib.util.find_spec(name) is None), "")

    def load(self, folder: Path) -> LoadedRecipe:
        """Load the recipe; its configuration, if it has one, is written into `folder`."""
        reference = self.model
        if self.model in CONFIGURATIONS:
            file = folder / f"{self.model}.json"
            file.write_text(json.dumps(CONFIGURATIONS[self.model]), encoding="utf-8")
            reference = f"hf:{file}"
        assert self.settings.micro_batch
        options = {name.replace(".", "_"): value for name, value in self.options.items()}
        return load(reference, {**options, "effective_batch": 2 * self.settings.micro_batch})

    def json(self) -> dict[str, Any]:
        return {"model": self.model, "options": dict(self.options), "settings": self.settings.json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Case:
        settings = Settings.from_json(values["settings"])
        return cls(model=values["model"], options=values["options"], settings=settings)


def _model(kind: str, head: str, **values: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [head], **values}


_LLAMA = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": 32768}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    # The defaults of these are published models: BERT-base, GPT-2, RoBERTa-base, DistilBERT, ViT-base, ModernBERT.
    "bert-base": _model("bert", "BertForSequenceClassification"),
    "gpt2": _model("gpt2", "GPT2LMHeadModel"),
    "gpt2-tiny": _model("gpt2", "GPT2LMHeadModel", vocab_size=512, n_embd=16, n_layer=2, n_head=2),
    "roberta-base": _model("roberta", "RobertaForMaskedLM", vocab_size=50265, max_position_embeddings=514),
    "distilbert": _model("distilbert", "DistilBertForSequenceClassification"),
    "vit-base": _model("vit", "ViTForImageClassification"),
    "modernbert": _model("modernbert", "ModernBertForMaskedLM"),
    "opt-125m": _model("opt", "OPTForCausalLM", ffn_dim=3072, hidden_size=768, num_hidden_layers=12),
    "t5-small": _model(
        "t5", "T5ForConditionalGeneration", d_model=512, d_ff=2048, num_layers=6, decoder_start_token_id=0
    ),
    "qwen2.5-0.5b": _model(
        "qwen2", "Qwen2ForCausalLM", vocab_size=151936, hidden_size=896, intermediate_size=4864,
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, **_LLAMA,
    ),
    "llama-1b": _model(
        "llama", "LlamaForCausalLM", vocab_size=128256, hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, **_LLAMA,
    ),
    # Small enough for a CPU.
    "resnet-18": _model(
        "resnet", "ResNetForImageClassification", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512],
        layer_type="basic", embedding_size=64,
    ),
    "bert-small": _model(
        "bert", "BertForSequenceClassification", hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024,
    ),
    "gpt2-small": _model("gpt2", "GPT2LMHeadModel", vocab_size=8192, n_embd=384, n_layer=6, n_head=6),
}  # fmt: skip
"""The configurations published by the authors, without weights; the tiny one is for dry runs."""

_BASE = (
    ("legal", 16, {}), ("vqa", 8, {}), ("cloud", 2, {}), ("chart", 1, {"generations": 2}),
    ("temporal", 256, {}), ("finetune", 8, {}),
    ("bert-base", 16, {"seq_len": 256}), ("gpt2", 4, {"seq_len": 512}), ("qwen2.5-0.5b", 2, {"seq_len": 512}),
    ("llama-1b", 1, {"seq_len": 512}), ("t5-small", 8, {"seq_len": 256}), ("opt-125m", 4, {"seq_len": 512}),
    ("vit-base", 32, {}), ("modernbert", 8, {"seq_len": 512}), ("roberta-base", 8, {"seq_len": 256}),
    ("distilbert", 16, {"seq_len": 256}),
)  # fmt: skip
"""Each model with a microbatch for a small GPU."""

_LORA = {"lora.r": 8}

_GRID: tuple[tuple[dict[str, Any], dict[str, Any], tuple[str, ...] | None], ...] = (
    # Settings, additional options, and the models they apply to (None: all).
    ({"precision": "fp16", "checkpointing": "no"}, {}, None),
    ({"precision": "fp32", "checkpointing": "no"}, {}, None),
    ({"precision": "fp16", "checkpointing": "full"}, {}, ("gpt2", "qwen2.5-0.5b", "llama-1b", "legal", "bert-base")),
    ({"precision": "bf16", "checkpointing": "no"}, _LORA, ("qwen2.5-0.5b", "llama-1b", "gpt2", "bert-base")),
    (
        {"precision": "fp32", "checkpointing": "no", "optimizer_kernel": "for-loop"},
        {},
        ("bert-base", "gpt2", "llama-1b", "t5-small", "cloud"),
    ),
    (
        {"precision": "fp32", "checkpointing": "no", "optimizer_kernel": "fused"},
        {},
        ("bert-base", "gpt2", "llama-1b", "vit-base", "vqa"),
    ),
    ({"precision": "bf16", "checkpointing": "no"}, {}, None),
    ({"precision": "fp32", "checkpointing": "full"}, {}, ("gpt2", "qwen2.5-0.5b", "bert-base", "vit-base")),
)
"""The most informative first, because cases after the deadline are left out."""

_TINY = (("legal", 2, {"size": "tiny"}), ("vqa", 2, {"size": "tiny"}), ("gpt2-tiny", 2, {"seq_len": 16}))


def cases(precisions: tuple[str, ...]) -> list[Case]:
    """Return the grid in the precisions of a GPU, followed by the first settings of each model in other sizes."""
    grid = [
        Case(
            model=model,
            settings=Settings(micro_batch=size * factor, **settings),
            options={**options, **extra_options},
        )
        for factor in (1, 4, 2)
        for settings, extra_options, models in (_GRID if factor == 1 else _GRID[:1])
        for model, size, options in _BASE
        if models is None or model in models
    ]
    return [case for case in grid if case.settings.precision in precisions]


def tiny() -> Iterator[Case]:
    """Yield cases small enough for a dry run on any CPU."""
    for model, size, options in _TINY:
        yield Case(
            model=model, settings=Settings(micro_batch=size, precision="fp32", checkpointing="no"), options=options
        )
