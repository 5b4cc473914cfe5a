"""Adapters, 4-bit weights and 8-bit optimizer states for any recipe's model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.proposals.budget import Budget, evaluate
from shoestring.planning.proposals.options import is_possible
from shoestring.planning.proposals.proposal import Proposal, proposal_of
from shoestring.planning.trace.record import Facts
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.options import LoadedRecipe, option_fields, with_defaults

ADAPTATIONS: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"optimizer_states": "8bit"}, "8-bit optimizer states"),
    ({"lora_r": 8}, "LoRA adapters on frozen weights"),
    ({"lora_r": 8, "quantization": "nf4"}, "LoRA adapters on frozen 4-bit weights"),
)
"""Options of any recipe (`options.Adaptation`) that save memory, while all weights are trained."""


FROZEN: Sequence[tuple[Mapping[str, Any], str]] = (({"quantization": "nf4"}, "frozen weights in 4 bits"),)
"""The same for a model whose weights are frozen already, because only adapters are trained."""


def propose_adaptations(candidates: Candidates, chosen: Candidate, budget: Budget, facts: Facts) -> Iterator[Proposal]:
    """Propose the adaptations of any recipe's model that are not in use yet."""
    for values, title in unused_adaptations(candidates.loaded, facts):
        settings = adapted(chosen.settings)
        result = evaluate(candidates, {**values, **_stored_type(candidates, values, settings)}, settings, budget)
        if isinstance(result, Candidate):
            yield proposal_of(title, values, result, changes_learning=True)
        elif result:
            yield Proposal(name=title, values=values, changes_learning=True, note=result)


def unused_adaptations(loaded: LoadedRecipe, facts: Facts) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the options that adapt the recipe's model in a way that is not in use yet, with their description."""
    known, default = option_fields(loaded), vars(Adaptation())
    is_frozen = facts.parameters_trainable < facts.parameters_total
    for values, title in FROZEN if is_frozen else ADAPTATIONS:
        unused = all(name in known and loaded.options.get(name) == default[name] for name in values)
        if "lora_r" in values and not facts.is_pretrained:
            continue  # frozen random weights are of no use
        if unused and is_possible(loaded, values):
            yield values, title


def _stored_type(candidates: Candidates, values: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the type of the weights that adapters would freeze, if the recipe leaves it to the plan."""
    loaded = candidates.loaded
    if "lora_r" not in values or with_defaults(type(loaded.recipe), loaded.name).options.get("weights") != "auto":
        return {}
    adapted = with_weight_type(loaded.replace(**values, weights="auto"), candidates.target, settings)
    return {"weights": adapted.options["weights"]}


def adapted(settings: Settings) -> Settings:
    """Return the settings of a model that is adapted: another kind of optimizer has its own kernels.

    Its weights or states may have scales that cannot be divided, and need less memory whole.
    """
    return settings.replace(
        optimizer_kernel=None,
        streamed_blocks=None,
        stream_from=None,
        stream_order=None,
        sharding="ddp" if divides_weights(settings) else settings.sharding,
    )


def divides_weights(settings: Settings) -> bool:
    return settings.sharding in ("zero2", "zero3")
