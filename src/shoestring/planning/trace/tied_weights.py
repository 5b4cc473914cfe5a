"""Tying weights that transformers ties on a device with memory alone."""

from __future__ import annotations

from typing import Any

from torch import nn


def tie(model: nn.Module) -> None:
    """Tie the weights of the models of transformers within `model`, which was built on the meta device.

    In transformers 5.0 `PreTrainedModel.init_weights` does not tie weights on that device: a plan would count the
    embeddings a second time, as the weights of the output layer. Other versions tie them on every device. Only what the
    model itself wants to be tied is: `all_tied_weights_keys` is empty where its configuration says so.
    """
    for module in model.modules():
        names: Any = getattr(module, "all_tied_weights_keys", None)
        if not names or not isinstance(names, dict):
            continue
        weights = dict(module.named_parameters(remove_duplicate=False))
        # A wrapper, such as an adapter's, may have renamed a weight.
        pairs = [(weights.get(target), weights.get(source)) for target, source in names.items()]
        if any(target is not source for target, source in pairs if target is not None and source is not None):
            owner: Any = module
            owner.tie_weights(recompute_mapping=False)
