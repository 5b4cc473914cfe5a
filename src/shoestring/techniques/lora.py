"""LoRA adapters by peft: low-rank matrices added to frozen weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.packages import requirements
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques import lora_targets
from shoestring.techniques.lora_targets import Targets

EXTRA = "huggingface"
_USUAL_SHARE, _LISTED = 0.5, 3
"""The share of the weights that have adapters from which none without are named, and how many are named below it."""


def with_adapters(base: nn.Module, adaptation: Adaptation) -> nn.Module:
    """Return peft's model around `base`, in which only the adapters are trained, in the type `lora_dtype`.

    Raises UsageError for targets that the model does not have or on which adapters would have no effect, and if peft is
    not installed or cannot adapt them.
    """
    requirements.require(EXTRA, "peft")
    targets = lora_targets.find(base, adaptation)  # before importing peft, which takes seconds
    from peft import LoraConfig, get_peft_model

    assert adaptation.lora_r is not None
    adapters = LoraConfig(
        r=adaptation.lora_r,
        lora_alpha=adaptation.lora_alpha or 2 * adaptation.lora_r,
        lora_dropout=adaptation.lora_dropout,
        use_rslora=adaptation.lora_rslora,
        use_dora=adaptation.lora_dora,
        **_target_arguments(base, targets, adaptation),
    )
    with warnings.catch_warnings():
        # peft uses a name that newer versions of transformers deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        # GPT-2's layers have their weights transposed, which peft sees and then warns about.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False", UserWarning)
        if not _has_tied_weights(base):
            # peft 0.19 warns about every model whose class can tie weights.
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        untyped_base: Any = base
        try:
            with _with_embeddings(base):
                adapted: nn.Module = get_peft_model(untyped_base, adapters)
        except ValueError as error:  # a module of a kind that peft does not adapt
            raise lora_targets.cannot_be_used(base, adaptation, [str(error).partition("\n")[0]]) from error
    if adaptation.lora_experts != lora_targets.EARLIER:
        _require_targets(adapted, targets)
    for module in adapted.modules():
        if hasattr(module, "parameter_name"):
            untyped_module: Any = module
            untyped_module.get_param().is_parametrized = True
    if adaptation.lora_dtype == "bf16":
        # peft itself creates them in fp32, or in the type of the weights, which 4-bit weights do not have.
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    return adapted


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the weights of a model's blocks: of all but norms, biases, embeddings and the head."""

    adapted: float
    """Those with adapters."""
    without: dict[str, float]
    """The largest without, by the ends of their names."""


def shares(model: nn.Module) -> Shares:
    """Return which share of the weights of an adapted model's blocks has adapters."""
    blocks = [weight for weight in _weights(model) if not weight.is_embedding]
    total = max(1, sum(weight.count for weight in blocks))
    unadapted: dict[str, int] = {}
    for weight in blocks:
        if not weight.is_adapted:
            ending = _short(weight.name.removesuffix(".weight"), 2)
            unadapted[ending] = unadapted.get(ending, 0) + weight.count
    largest = sorted(unadapted, key=lambda name: -unadapted[name])[:_LISTED]
    return Shares(
        adapted=sum(weight.count for weight in blocks if weight.is_adapted) / total,
        without={name: unadapted[name] / total for name in largest},
    )


def notes(model: nn.Module, adaptation: Adaptation) -> list[str]:
    """Return which share of the weights of an adapted model's blocks has adapters, and which large ones have none."""
    share = shares(model)
    text = f"lora_targets={adaptation.lora_targets} adapts {share.adapted:.0%} of the weights of the model's blocks"
    if share.adapted >= _USUAL_SHARE:
        return [text]
    names = ", ".join(f"{name} ({part:.0%})" for name, part in share.without.items())
    return [f"{text}; without adapters are {names}"]


@dataclass(frozen=True, kw_only=True)
class _Weight:
    """A weight of an adapted model."""

    name: str
    """As without adapters."""
    count: int
    is_adapted: bool
    is_embedding: bool
    """Of tokens, positions or the head."""
    is_packed: bool


def _weights(adapted: Any) -> Iterator[_Weight]:
    """Yield all weights of the base but those of its norms and biases."""
    base = adapted.get_base_model()
    embeddings = set()
    for find in ("get_input_embeddings", "get_output_embeddings"):
        with suppress(Exception):  # a model may have the method, and no such module
            embeddings |= {id(weight) for weight in getattr(base, find)().parameters()}
    adapted_names = {_adapted_name(name, module) for name, module in base.named_modules() if hasattr(module, "lora_A")}
    for name, weight in base.named_parameters():
        if ".lora_" in name or ".trainable_tokens_" in name or weight.dim() < 2:
            continue
        own_name, module = _without_adapters(name), base.get_submodule(name.rpartition(".")[0])
        yield _Weight(
            name=own_name,
            count=_count(module, weight),
            is_adapted=own_name in adapted_names,
            is_embedding=id(weight) in embeddings or isinstance(module, nn.Embedding),
            is_packed=not weight.is_floating_point(),
        )


def _adapted_name(module_name: str, module: Any) -> str:
    """Return the name of the parameter that an adapter changes."""
    return f"{_without_adapters(module_name)}.{getattr(module, 'parameter_name', 'weight')}"


def _without_adapters(name: str) -> str:
    """Return a name as it is without the modules that peft puts around others."""
    return ".".join(part for part in name.split(".") if part != "base_layer")


def _count(module: nn.Module, weight: nn.Parameter) -> int:
    """Return the number of values of a weight, of which two are in a byte of a packed one."""
    if weight.is_floating_point() or not hasattr(module, "in_features"):
        return weight.numel()
    untyped: Any = module
    return int(untyped.in_features * untyped.out_features)


@contextmanager
def _with_embeddings(base: Any) -> Iterator[None]:
    """Within it, the model of a class for which transformers does not know the embedding says that it has none.

    peft asks every model for it, to see whether other layers are tied to it.
    """
    try:
        base.get_input_embeddings()
    except NotImplementedError:
        base.get_input_embeddings = nn.Module
        try:
            yield
        finally:
            del base.get_input_embeddings
    except AttributeError:  # no model of transformers
        yield
    else:
        yield


def _has_tied_weights(model: nn.Module) -> bool:
    return len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))


def _target_arguments(base: nn.Module, targets: Targets, adaptation: Adaptation) -> dict[str, Any]:
    """Return the arguments of peft's configuration that say where the adapters are.

    In mixtures whose experts were linear layers in transformers 4, peft takes the names that these had for the stacked
    experts, and puts no adapter on the linear layers of the same names beside them: on the shared expert and in blocks
    without experts. Named as parameters, such layers have one.
    """
    rows = getattr(base, "added_rows", None)  # of an embedding and a head, to which a recipe has added these
    arguments: dict[str, Any] = {} if rows is None else {"trainable_token_indices": rows}
    if adaptation.lora_experts == lora_targets.EARLIER:
        return arguments | {"target_modules": list(targets.endings)}
    renamed = {name for name in targets.endings if _is_renamed_by_peft(base, name)}
    layers = [name for name in targets.layers if renamed.intersection(_suffixes(name))]
    unpacked = [name for name in layers if next(base.get_submodule(name).parameters()).is_floating_point()]
    parameters = [_short(name) for name in (*(f"{name}.weight" for name in unpacked), *targets.experts)]
    arguments |= {"target_modules": [name for name in targets.endings if name not in renamed]}
    if targets.excluded:
        arguments["exclude_modules"] = list(targets.excluded)
    if parameters:
        _require_for_parameters(adaptation)
        arguments["target_parameters"] = list(dict.fromkeys(parameters))
    return arguments


def _require_for_parameters(adaptation: Adaptation) -> None:
    """Raise UsageError if peft cannot adapt experts that are stacked in one parameter, or not with these options."""
    from peft import LoraConfig

    skip = "--set lora_experts=no leaves the experts without adapters"
    if "target_parameters" not in {field.name for field in fields(LoraConfig)}:
        raise UsageError(
            f"lora_targets={adaptation.lora_targets}: the experts are stacked in one parameter for each layer, which "
            f"peft {metadata.version('peft')} cannot adapt",
            hint=f"pip install -U 'peft>=0.17'; or {skip}",
        )
    options = {"lora_dropout": adaptation.lora_dropout, "lora_dora": adaptation.lora_dora}
    if problems := [f"{name}={value}" for name, value in options.items() if value]:
        raise UsageError(
            f"lora_targets={adaptation.lora_targets}: the experts are stacked in one parameter for each layer, whose "
            "adapters are added to the weights: peft has neither dropout of their inputs nor DoRA for them",
            problems=problems,
            hint=f"leave {' and '.join(name.partition('=')[0] for name in problems)} out; or {skip}",
        )


def _is_renamed_by_peft(base: nn.Module, name: str) -> bool:
    """Return whether peft takes the name of a layer for that of stacked experts."""
    with suppress(ImportError):  # peft before 0.19, and any with transformers 4, have no such names
        from peft import LoraConfig
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

        config = LoraConfig(target_modules=[name])
        try:
            convert_peft_config_for_transformers(config, base, None)
        except ValueError:  # one of two names that stand for one stack
            return True
        return name not in (config.target_modules or ())
    return False


def _short(name: str, parts: int = 3) -> str:
    """Return the end of a parameter's name, which tells it from those of other parts of a block."""
    return ".".join(name.split(".")[-parts:])


def _suffixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[index:]) for index in range(len(parts)))


def _require_targets(adapted: nn.Module, targets: Targets) -> None:
    """Raise UsageError if peft has not put adapters where they were to be, and nowhere else."""
    expected = {*(f"{name}.weight" for name in targets.layers), *targets.experts}
    differing = sorted(
        weight.name
        for weight in _weights(adapted)
        if weight.is_adapted != (weight.name in expected) and not (weight.is_packed and not weight.is_adapted)
    )
    if differing:
        raise UsageError(
            f"peft {metadata.version('peft')} has put adapters on other weights than those that were named",
            problems=[f"{name} is one of {len(differing)} that differ" for name in differing[:1]],
            hint="name the layers: --set lora_targets=NAME,NAME; and please report the model",
        )
