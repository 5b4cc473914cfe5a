"""The commands whose values the documentation quotes, by the name that quotes them."""

from dataclasses import dataclass
from typing import Literal

from shoestring.base.config import parse_pairs
from shoestring.base.settings import Settings
from shoestring.recipe.finding import choose
from shoestring.recipe.options import LoadedRecipe

ONE, TWO = "kaggle-t4", "kaggle-t4x2"
A100S = ("a100-40", "a100-80")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan or an estimate."""

    verb: Literal["plan", "estimate"] = "plan"
    recipe: str
    target: str = ONE
    options: str = ""
    """Options and settings as pairs KEY=VALUE."""

    @property
    def command(self) -> str:
        options = "".join(f" --set {option}" for option in self.options.split())
        return f"shoestring {self.verb} {self.recipe} --on {self.target}{options}"

    def choose(self) -> tuple[LoadedRecipe, Settings]:
        """Return the recipe with its options, and the settings that are fixed."""
        return choose(self.recipe, parse_pairs(self.options.split()))


# The rows of a plan are those of all parts of the data, of which a share is for training: 80% in vqa, legal and chart,
# 149 of 169 scenes in cloud. The following rows leave as many for training as the guides train on.
VQA = "rows=12376"
"""9,900 samples for training: the guide's 11,000 without a tenth for validation."""
LEGAL_TOKENS = "row_tokens=71"
"""LegalSeg has about 34 tokens a sentence (README of ShubhamKumarNigam/LegalSeg). A sample is a sentence with the one
before it and three special tokens."""
LEGAL = "rows=2500"
"""2,000 judgments of 225 sentences for training: the 450,000 sentences that the guide counts in 5,000 files."""
LEGAL_COMPLETE = "rows=6230"
"""The 4,984 judgments of LegalSeg's training part."""
CLOUD = "epochs=10 effective_batch=4 rows=1134"
"""1,000 images for training."""
CLOUD_COMPLETE = "epochs=10 effective_batch=4 rows=122218"
"""All patches of SEN12MS-CR, those of its validation and test scenes among them."""
CHART = "epochs=1 generations=2 effective_batch=4"
CHART_ROWS = {1_000: "rows=1250", 10_000: "rows=12500", 34_000: "rows=42500"}
LEGAL_ROWS = {1_000: "rows=1250", 5_000: "rows=6250", 10_000: "rows=12500"}


def _plan(recipe: str, options: str, target: str = ONE) -> Case:
    return Case(recipe=recipe, target=target, options=options)


def _estimate(recipe: str, options: str, target: str = "t4") -> Case:
    return Case(verb="estimate", recipe=recipe, target=target, options=options)


def _on_both(name: str, recipe: str, options: str, both: str | None = None) -> dict[str, Case]:
    """Return a plan for one T4, and `NAME_both` for two, with the options `both` if they are others."""
    return {
        name: _plan(recipe, options),
        f"{name}_both": _plan(recipe, options if both is None else both, TWO),
    }


def _question(name: str, recipe: str, options: str) -> dict[str, Case]:
    """Return a plan for Kaggle's two T4s and for each A100."""
    return {f"{name}_{_identifier(target)}": _plan(recipe, options, target) for target in (TWO, *A100S)}


def _identifier(text: str) -> str:
    return text.replace("-", "_")


_VQA_GUIDE = f"{VQA} forwards=guide"
_VQA_GUIDE_SETTINGS = f"{_VQA_GUIDE} micro_batch=3 precision=fp16 checkpointing=12"
_CHART_GUIDE = f"{CHART_ROWS[10_000]} {CHART} micro_batch=1 precision=fp16 checkpointing=full"
_CHART_MEMORY = "generations=2 effective_batch=4 micro_batch=1 precision=fp16"

CASES: dict[str, Case] = {
    # The plans of the guides' settings, and what a plan chooses.
    **_on_both("vqa.guide", "vqa", _VQA_GUIDE_SETTINGS, f"{_VQA_GUIDE_SETTINGS} gpus=2"),
    **_on_both("vqa.chosen", "vqa", VQA),
    **_on_both("vqa.own_weights", "vqa", f"{VQA} light_weights=own"),
    **_on_both("vqa.states_8bit", "vqa", f"{VQA} optimizer_states=8bit"),
    **_on_both(
        "legal.fp32",
        "legal",
        f"{LEGAL} micro_batch=16 precision=fp32",
        f"{LEGAL} micro_batch=8 precision=fp32 checkpointing=no gpus=2",
    ),
    **_on_both(
        "legal.fp16",
        "legal",
        f"{LEGAL} micro_batch=8 precision=fp16",
        f"{LEGAL} micro_batch=8 precision=fp16 checkpointing=no gpus=2",
    ),
    **_on_both("legal.chosen", "legal", f"{LEGAL} {LEGAL_TOKENS}"),
    **_on_both("legal.short", "legal", f"{LEGAL} {LEGAL_TOKENS} seq_len=128"),
    **_on_both("temporal.lstm", "temporal", "architecture=lstm micro_batch=256 precision=fp16"),
    **_on_both("temporal.transformer", "temporal", "architecture=transformer micro_batch=256 precision=fp16"),
    **_on_both("temporal.mlp", "temporal", "architecture=mlp effective_batch=512 micro_batch=512 precision=fp16"),
    **_on_both(
        "cloud.guide",
        "cloud",
        f"{CLOUD} micro_batch=4 precision=fp32 cudnn_benchmark=true",
        f"{CLOUD} micro_batch=2 precision=fp32 cudnn_benchmark=true checkpointing=no gpus=2",
    ),
    **_on_both("cloud.chosen", "cloud", CLOUD),
    **_on_both("chart.guide", "chart", _CHART_GUIDE, f"{_CHART_GUIDE} gpus=2"),
    **_on_both("chart.chosen", "chart", f"{CHART_ROWS[10_000]} {CHART}"),
    # All public data.
    **_on_both("legal.complete_guide", "legal", f"{LEGAL_COMPLETE} micro_batch=8 precision=fp16"),
    **_on_both("legal.complete", "legal", f"{LEGAL_COMPLETE} {LEGAL_TOKENS}"),
    **_on_both("cloud.complete", "cloud", CLOUD_COMPLETE),
    # The guides' questions.
    **_question("question.vqa", "vqa", VQA),
    **{
        name: case
        for files, rows in LEGAL_ROWS.items()
        for name, case in _question(f"question.legal_{files}", "legal", f"{rows} {LEGAL_TOKENS}").items()
    },
    **_question("question.cloud", "cloud", CLOUD),
    **{
        name: case
        for charts, rows in CHART_ROWS.items()
        for name, case in _question(f"question.chart_{charts}", "chart", f"{rows} {CHART}").items()
    },
    # Single techniques.
    "vqa.not_checkpointed": _plan("vqa", f"{_VQA_GUIDE} micro_batch=3 precision=fp16 checkpointing=no"),
    "vqa.fp32": _plan("vqa", f"{_VQA_GUIDE} micro_batch=3 precision=fp32 checkpointing=12"),
    "vqa.batch_2": _plan("vqa", f"{_VQA_GUIDE} effective_batch=8 micro_batch=2 precision=fp16 checkpointing=12"),
    "vqa.batch_4": _plan("vqa", f"{_VQA_GUIDE} effective_batch=8 micro_batch=4 precision=fp16 checkpointing=12"),
    "vqa.answers_128": _plan("vqa", f"{_VQA_GUIDE_SETTINGS} a_len=128"),
    "vqa.chosen_on_both": _plan("vqa", f"{VQA} gpus=2", TWO),
    "legal.fp32_8": _plan("legal", f"{LEGAL} micro_batch=8 precision=fp32 checkpointing=no"),
    "legal.fp16_16": _plan("legal", f"{LEGAL} micro_batch=16 precision=fp16 checkpointing=no"),
    "legal.fp16_4": _plan("legal", f"{LEGAL} micro_batch=4 precision=fp16 checkpointing=no"),
    "legal.checkpointed": _plan("legal", f"{LEGAL} micro_batch=8 precision=fp16 checkpointing=full"),
    "legal.tokens_256": _plan("legal", f"{LEGAL} seq_len=256 micro_batch=8 precision=fp16 checkpointing=no"),
    **{
        f"legal.bert_large_{batch}": _estimate(
            "hf:benchmarks/claims/bert_large/config.json",
            f"seq_len=512 effective_batch=16 micro_batch={batch} precision=fp16",
        )
        for batch in (4, 8, 16)
    },
    "temporal.lstm_fp32": _plan("temporal", "architecture=lstm micro_batch=256 precision=fp32"),
    "temporal.transformer_fp32": _plan("temporal", "architecture=transformer micro_batch=256 precision=fp32"),
    "temporal.mlp_fp32": _plan("temporal", "architecture=mlp effective_batch=512 micro_batch=512 precision=fp32"),
    **{
        f"temporal.lstm_of_{batch}": _plan(
            "temporal", f"architecture=lstm effective_batch={batch} micro_batch={batch} precision=fp16"
        )
        for batch in (128, 512, 2048)
    },
    "temporal.graphs": _plan("temporal", "architecture=transformer micro_batch=256 precision=fp16 compile=graphs"),
    "cloud.fp32": _plan("cloud", f"{CLOUD} micro_batch=4 precision=fp32"),
    # The memory of the guides' settings (docs/explanation/workloads.md).
    "memory.vqa_3": _estimate("vqa", "forwards=guide micro_batch=3 precision=fp16 checkpointing=12"),
    "memory.vqa_2": _estimate("vqa", "forwards=guide micro_batch=2 precision=fp16 checkpointing=12"),
    "memory.vqa_shared": _estimate("vqa", "forwards=shared micro_batch=3 precision=fp16 checkpointing=12"),
    "memory.legal_16": _estimate("legal", "micro_batch=16 precision=fp32"),
    "memory.legal_8": _estimate("legal", "micro_batch=8 precision=fp16"),
    "memory.legal_4": _estimate("legal", "micro_batch=4 precision=fp16"),
    "memory.legal_short": _estimate("legal", "micro_batch=16 precision=fp32 seq_len=128"),
    "memory.lstm": _estimate("temporal", "architecture=lstm micro_batch=256 precision=fp16"),
    "memory.transformer": _estimate("temporal", "architecture=transformer micro_batch=256 precision=fp16"),
    "memory.mlp": _estimate("temporal", "architecture=mlp micro_batch=512 precision=fp16"),
    "memory.lstm_512": _estimate("temporal", "architecture=lstm micro_batch=512 precision=fp16"),
    "memory.cloud_2": _estimate("cloud", "micro_batch=2 precision=fp32"),
    "memory.cloud_4": _estimate("cloud", "micro_batch=4 precision=fp32"),
    "memory.chart_zero3": _estimate("chart", f"{_CHART_MEMORY} checkpointing=full sharding=zero3", TWO),
    "memory.chart": _estimate("chart", f"{_CHART_MEMORY} checkpointing=full"),
    "memory.chart_not_checkpointed": _estimate("chart", f"{_CHART_MEMORY} checkpointing=no"),
    "memory.chart_zero3_not_checkpointed": _estimate("chart", f"{_CHART_MEMORY} checkpointing=no sharding=zero3", TWO),
    "memory.chart_384": _estimate("chart", f"{_CHART_MEMORY} completion_len=384 checkpointing=no sharding=zero3", TWO),
    # The model of docs/guides/memory.md.
    **{
        f"gpt2.{name}": _estimate(
            "hf:benchmarks/claims/gpt2_large/config.json", f"seq_len=512 micro_batch=4 {options}".strip(), ONE
        )
        for name, options in {
            "whole": "",
            "checkpointed": "checkpointing=full",
            "lora": "lora_r=8 weights=fp32",
            "nf4": "lora_r=8 weights=fp32 quantization=nf4",
        }.items()
    },
}
