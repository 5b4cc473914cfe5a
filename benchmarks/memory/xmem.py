"""The runs that the authors of xMem measured (arXiv 2510.21048, code and data under MIT), as recipes.

Their loops are in `exp/trainer/` of Stone-ResearchLife/xMem: float32 and four steps; outputs, loss and batch of a step
stay alive until the next step overwrites them; gradients are cleared at one of three places; lines have random order.
torchvision is not a dependency of the project; if it is installed in a separate folder, only these models use it.
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

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES, Device

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

STEPS = 4
IMAGE = (3, 86, 86)
TOKENS = 128
"""Lines are truncated to this length and padded to the longest line of the batch; almost every batch of five or more
contains a line of this length."""

LONG_LINES = 0.22
"""The share of lines with 128 tokens or more: of wikitext-2-raw's 36,718 training lines 12,951 are empty and about
6,000 are headings; the others have 2.4 million GPT-2 tokens, 137 per line, and if their lengths vary about as much as
their mean, slightly less than half reach 128. This is an assumption: the lines were not counted."""

_GPUS = {"RTX 4060 8GB": "rtx4060", "RTX 3060 12GB": "rtx3060", "A100 40GB": "a100-40"}

_TOTAL_BYTES = {"RTX 3060 12GB": 12_622_168_064}
"""The memory given in the notes of the records; for other GPUs the catalog has the memory."""

_CLASSES = {"MnasNet": ("mnasnet1_0", 10), "MobeNetV3Large": ("mobilenet_v3_large", 10)}
_CLASSES |= {"MobeNetV3Small": ("mobilenet_v3_small", 10)}
"""torchvision models without the 1000 ImageNet classes, by the names in the records."""

_EAGER = {"bloom", "codegen", "ctrl", "gpt_neo", "gptj", "longt5", "mpt", "mt5", "t5", "umt5", "xlnet"}
"""Model types without SDPA in transformers 4.51, the version of the runs."""

_SHARED_SDPA = {"cohere", "gemma", "gemma2", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral", "olmo"}
_SHARED_SDPA |= {"olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"}
"""Model types that used the common SDPA function of that version; others, such as OPT and BERT, had their own."""

FORWARD_FIRST = 1
AFTER_STEP = 2
"""`zero_grad`: 0 clears before the batch is moved, 1 between forward and backward, 2 after the step."""


@dataclass(kw_only=True)
class Run:
    """A run of the authors; a subclass defines the model and its batches."""

    name: str
    optimizer_name: str
    zero_grad: int

    effective_batch = 32
    epochs = 1
    seed = 0

    def __post_init__(self) -> None:
        self._last_step: tuple[Any, ...] = ()
        self._optimizer: Optimizer | None = None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Build the optimizer of the loop; `loss` clears gradients unless they are cleared after the step."""
        import torch

        kind = getattr(torch.optim, self.optimizer_name, None)
        if kind is None:
            raise UsageError(f"torch.optim has no {self.optimizer_name}")
        optimizer: Any = kind(model.parameters(), lr=1e-3)
        self._clear_gradients = optimizer.zero_grad
        if self.zero_grad != AFTER_STEP:
            optimizer.zero_grad = _keep_gradients
        self._last_step = ()
        return optimizer  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.zero_grad not in (FORWARD_FIRST, AFTER_STEP):
            self._clear_gradients()
        outputs, loss = self.forward(model, batch)
        # The objects of the last step stay alive until here.
        self._last_step = (outputs, loss, batch)
        if self.zero_grad == FORWARD_FIRST:
            self._clear_gradients()
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
        """Return nothing, because all batches have one shape."""
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
        _store_first_keys_without_copy()
        if kind in _SHARED_SDPA:
            _make_contiguous_before_sdpa()
        model: nn.Module = auto.from_config(
            config, attn_implementation="eager" if kind in _EAGER else "sdpa", dtype=torch.float32
        )
        return model

    def batch(self, size: int) -> dict[str, Tensor]:
        import torch

        shape = (size, TOKENS)
        return {name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}

    def first_batches(self, size: int) -> Mapping[float, float]:
        """Return the probability that a batch before the last has no long line; its assumed lengths are guesses."""
        short = 1 - (1 - (1 - LONG_LINES) ** size) ** (STEPS - 1)
        return {15 / 16: short / 2, 7 / 8: short / 2}

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        outputs = model(**batch)
        return outputs, outputs.loss


def case(row: Row, configs: Path) -> Case:
    """Build the case of a row. Raises UsageError for an unknown GPU."""
    if row["gpu"] not in _GPUS:
        raise UsageError(f"unknown GPU {row['gpu']}")
    return Case(
        recipe=lambda: build_run(row, configs),
        same=tuple(row[name] for name in ("model", "optimizer", "zero_grad")),
        settings=Settings(micro_batch=int(row["batch_size"]), precision="fp32"),
        device=device(row["gpu"]),
    )


def device(gpu: str) -> Device:
    """Return the catalog's device for the name of a GPU in the records."""
    entry = DEVICES[_GPUS[gpu]]
    return dataclasses.replace(entry, memory_bytes=_TOTAL_BYTES.get(gpu, entry.memory_bytes))


ROWS = Rows(
    case=case,
    measured=lambda row: number(row, "measured_bytes"),
    quantity="reserved",
    group=lambda row: row["family"],
    fitted=lambda row: row["oom"] != "1",
    rivals=("xmem", "dnnmem", "schedtune", "llmem"),
)


def build_run(row: Row, configs: Path) -> Run:
    """Build the recipe of a row of the records. Raises UsageError if the configuration of its model is missing."""
    common: dict[str, Any] = {
        "name": row["model"],
        "optimizer_name": row["optimizer"],
        "zero_grad": int(row["zero_grad"]),
    }
    return Images(**common) if row["family"] == "cnn" else Text(**common, configs=configs)


def _keep_gradients(set_to_none: bool = True) -> None:
    """Do nothing, because the loop clears gradients elsewhere."""


def _store_first_keys_without_copy() -> None:
    """Make the cache store the first keys and values without a copy, as in transformers 4.51 (`DynamicCache.update`).

    Models also fill a cache during training; later versions concatenate to an empty tensor, which copies.
    """
    from transformers.cache_utils import DynamicLayer

    original_update = DynamicLayer.update

    def update(layer: Any, keys: Tensor, values: Tensor, *arguments: Any, **options: Any) -> Any:
        if layer.keys is not None and layer.keys.numel():
            return original_update(layer, keys, values, *arguments, **options)
        # As `lazy_initialization` does, whose arguments differ between versions.
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        return keys, values

    DynamicLayer.update = update


def _make_contiguous_before_sdpa() -> None:
    """Make query, key and value contiguous before attention, as transformers 4.51 does (`sdpa_attention_forward`)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original_attention: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Any:
        tensors = (tensor.contiguous() for tensor in (query, key, value))
        return original_attention(module, *tensors, *arguments, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def torchvision_model(name: str) -> nn.Module:
    """Build the torchvision classification model `name` with the classes of the measured runs. Raises UsageError."""
    models = import_torchvision()
    name, classes = _CLASSES.get(name) or (_torchvision_name(name, models.list_models()), 1000)
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return model


def _torchvision_name(name: str, known: list[str]) -> str:
    names = {entry.replace("_", ""): entry for entry in known}
    try:
        return names[name.replace("_", "").lower()]
    except KeyError:
        raise UsageError(f"torchvision has no model {name}") from None


def import_torchvision() -> Any:
    """Import `torchvision.models`, from the folder in SHOESTRING_TORCHVISION if that is set.

    Its compiled operators, which a CPU build of torch cannot load, are missing, but it needs the schemas of two.
    """
    import torch

    if "torchvision" not in sys.modules and not _libraries:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
    folder = os.environ.get("SHOESTRING_TORCHVISION")
    if folder:
        sys.path.insert(0, folder)
    try:
        import torchvision.models
    except ImportError:
        raise UsageError(
            "needs torchvision: set SHOESTRING_TORCHVISION=DIR after pip install --no-deps --target DIR torchvision"
        ) from None
    finally:
        if folder:
            sys.path.remove(folder)
    return torchvision.models


_libraries: list[Any] = []
"""Libraries of operators, which are unregistered when the last reference is gone and can be registered only once."""
