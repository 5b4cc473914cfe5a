"""The runs that the authors of xMem measured (arXiv 2510.21048, code and data under MIT), as recipes.

What their loops do is in `exp/trainer/` of Stone-ResearchLife/xMem: float32, four steps, the last step's outputs, loss
and batch alive until the next ones take their names, gradients cleared at one of three places, lines in random order.
torchvision is no dependency of the project; where it is installed in a folder of its own, only these models see it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory.cases import Case, Row, Rows, configuration, number

from shoestring.errors import UsageError
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

STEPS = 4
IMAGE = (3, 86, 86)
TOKENS = 128
"""Lines are cut here and padded to the longest of the batch, which is as long in almost every batch of five or more."""

LONG_LINES = 0.22
"""The share of lines with 128 tokens or more: of wikitext-2-raw's 36,718 training lines 12,951 are empty and about
6,000 are headings; the others have 2.4 million of GPT-2's tokens, 137 each, and of lengths that are spread about as
widely as their mean, something less than half reach 128. An assumption, since nobody here has counted them."""

_GPUS = {"RTX 4060 8GB": "rtx4060", "RTX 3060 12GB": "rtx3060", "A100 40GB": "a100-40"}

_TOTAL_BYTES = {"RTX 3060 12GB": 12_622_168_064}
"""As the records' notes give it; where they do not, the catalogue's figure."""

_CLASSES = {"MnasNet": ("mnasnet1_0", 10), "MobeNetV3Large": ("mobilenet_v3_large", 10)}
_CLASSES |= {"MobeNetV3Small": ("mobilenet_v3_small", 10)}
"""Their names for torchvision's models, where the classes are not ImageNet's 1000."""

_EAGER = {"bloom", "codegen", "ctrl", "gpt_neo", "gptj", "longt5", "mpt", "mt5", "t5", "umt5", "xlnet"}
"""Model types without SDPA in transformers 4.51, with which the runs were made."""

_SHARED_SDPA = {"cohere", "gemma", "gemma2", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral", "olmo"}
_SHARED_SDPA |= {"olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"}
"""Model types that called the library's common SDPA function there; others, OPT and BERT among them, had their own."""

FORWARD_FIRST = 1
AFTER_STEP = 2
"""`zero_grad`: 0 clears before the batch is moved, these two between forward and backward and after the step."""


@dataclass(kw_only=True)
class Run:
    """One setting of theirs; a subclass says what the model is and what it reads."""

    name: str
    optimizer_name: str
    zero_grad: int

    effective_batch = 32
    epochs = 1
    seed = 0

    def __post_init__(self) -> None:
        self._last: tuple[Any, ...] = ()
        self._optimizer: Optimizer | None = None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """As the loop makes it; clearing is left to `loss`, save where it follows the step."""
        import torch

        kind = getattr(torch.optim, self.optimizer_name, None)
        if kind is None:
            raise UsageError(f"torch.optim has no {self.optimizer_name}")
        made: Any = kind(model.parameters(), lr=1e-3)
        self._clear = made.zero_grad
        if self.zero_grad != AFTER_STEP:
            made.zero_grad = _leave
        self._last = ()
        return made  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.zero_grad not in (FORWARD_FIRST, AFTER_STEP):
            self._clear()
        outputs, loss = self.forward(model, batch)
        # Until here the last step's lived.
        self._last = (outputs, loss, batch)
        if self.zero_grad == FORWARD_FIRST:
            self._clear()
        return loss

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        raise NotImplementedError


class Images(Run):
    """A torchvision classification model on CIFAR-10 resized to 86x86."""

    def model(self) -> nn.Module:
        return torchvision_model(self.name)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        import torch

        return torch.empty(size, *IMAGE, device="meta"), torch.empty(size, dtype=torch.int64, device="meta")

    def first_batches(self, _size: int) -> Mapping[float, float]:
        """All are of one shape."""
        return {}

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        from torch.nn.functional import cross_entropy

        images, labels = batch
        outputs = model(images)
        return outputs, cross_entropy(outputs, labels)


@dataclass(kw_only=True)
class Text(Run):
    """A Hub model built from its configuration, on lines of wikitext-2."""

    configs: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        path = configuration(self.name, self.configs)
        self._values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))

    def model(self) -> nn.Module:
        import torch
        import transformers

        values = dict(self._values)
        kind = values.pop("model_type")
        config = transformers.AutoConfig.for_model(kind, **values)
        if config.is_encoder_decoder:
            auto = transformers.AutoModelForSeq2SeqLM
        elif any("MaskedLM" in name for name in values.get("architectures") or ()):
            auto = transformers.AutoModelForMaskedLM
        else:
            auto = transformers.AutoModelForCausalLM
        _keep_first_keys_as_they_are()
        if kind in _SHARED_SDPA:
            _copy_before_sdpa()
        made: nn.Module = auto.from_config(
            config, attn_implementation="eager" if kind in _EAGER else "sdpa", dtype=torch.float32
        )
        return made

    def batch(self, size: int) -> dict[str, Tensor]:
        import torch

        shape = (size, TOKENS)
        return {name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}

    def first_batches(self, size: int) -> Mapping[float, float]:
        """How likely one of the batches before the last has no long line; by how much it is shorter is a guess."""
        short = 1 - (1 - (1 - LONG_LINES) ** size) ** (STEPS - 1)
        return {15 / 16: short / 2, 7 / 8: short / 2}

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        outputs = model(**batch)
        return outputs, outputs.loss


def case(row: Row, configs: Path) -> Case:
    """The row's run. Raises UsageError for a GPU that is not known."""
    if row["gpu"] not in _GPUS:
        raise UsageError(f"no GPU {row['gpu']} is known")
    return Case(
        recipe=lambda: run(row, configs),
        same=tuple(row[name] for name in ("model", "optimizer", "zero_grad")),
        settings=Settings(micro_batch=int(row["batch_size"]), precision="fp32"),
        device=device(row["gpu"]),
    )


def device(gpu: str) -> Device:
    """The catalogue's entry for the name of a GPU in the records."""
    found = DEVICES[_GPUS[gpu]]
    return dataclasses.replace(found, memory_bytes=_TOTAL_BYTES.get(gpu, found.memory_bytes))


ROWS = Rows(
    case=case,
    measured=lambda row: number(row, "measured_bytes"),
    judged="reserved",
    group=lambda row: row["family"],
    fitted=lambda row: row["oom"] != "1",
    rivals=("xmem", "dnnmem", "schedtune", "llmem"),
)


def run(row: Row, configs: Path) -> Run:
    """The recipe of a row of the records. Raises UsageError where its model's configuration is missing."""
    common: dict[str, Any] = {
        "name": row["model"],
        "optimizer_name": row["optimizer"],
        "zero_grad": int(row["zero_grad"]),
    }
    return Images(**common) if row["family"] == "cnn" else Text(**common, configs=configs)


def _leave(set_to_none: bool = True) -> None:
    """Gradients stay until the loop clears them elsewhere."""


def _keep_first_keys_as_they_are() -> None:
    """A cache that takes the first keys and values without a copy, as in transformers 4.51 (`DynamicCache.update`).

    Models fill one while they train, too; later versions concatenate to an empty tensor, which copies.
    """
    from transformers.cache_utils import DynamicLayer

    later = DynamicLayer.update

    def update(layer: Any, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> Any:
        if layer.is_initialized and layer.keys.numel():
            return later(layer, keys, values, *rest, **options)
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        return keys, values

    DynamicLayer.update = update


def _copy_before_sdpa() -> None:
    """Query, key and value made contiguous first, as transformers 4.51 does (`sdpa_attention_forward`)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    later: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        return later(module, query.contiguous(), key.contiguous(), value.contiguous(), *rest, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def torchvision_model(name: str) -> nn.Module:
    """torchvision's classification model of that name, with the classes of the measured runs. Raises UsageError."""
    models = _torchvision_models()
    name, classes = _CLASSES.get(name) or (_torchvision_name(name, models.list_models()), 1000)
    made: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return made


def _torchvision_name(name: str, known: list[str]) -> str:
    plain = {entry.replace("_", ""): entry for entry in known}
    try:
        return plain[name.replace("_", "").lower()]
    except KeyError:
        raise UsageError(f"torchvision has no model {name}") from None


def _torchvision_models() -> Any:
    """Its models, by way of the folder in SHOESTRING_TORCHVISION where that is set.

    Without its compiled operators, which a CPU build of torch cannot load, it still needs the schemas of two.
    """
    import torch

    if "torchvision" not in sys.modules:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    folder = os.environ.get("SHOESTRING_TORCHVISION")
    if folder:
        sys.path.insert(0, folder)
    try:
        import torchvision.models
    except ImportError:
        raise UsageError(
            "torchvision is not installed",
            hint="pip install --no-deps --target DIR torchvision, then set SHOESTRING_TORCHVISION=DIR",
        ) from None
    finally:
        if folder:
            sys.path.remove(folder)
    return torchvision.models


_kept: list[Any] = []
"""Libraries of operators live as long as somebody holds them."""
