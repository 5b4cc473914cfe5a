"""Writing completions with a policy under adapters: what transformers' `generate` gives, with a fraction of its work.

A token's step of `generate` is bound by the hundreds of small operators that ask for it. Here a prompt is read once for
all of its completions; keys and values lie in one place of their full length; positions are turned into angles once a
token, not once a layer; an adapter is two products, cast once a text. Dropout is off, as in every engine that writes
for GRPO: TRL leaves it on where it writes with `generate`, and then draws from another policy at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

Project: TypeAlias = Callable[[Tensor], Tensor]

LOOKED_AT = 16
"""Tokens on a GPU between two looks at whether all texts have ended: a look stops its queue of kernels."""


@torch.no_grad()
def write(
    model: Any, given: Mapping[str, Tensor], *, length: int, ends: list[int], padding: int, sampled: bool
) -> Tensor:
    """Tokens (n, at most `length`) after the prompts `given`, on the CPU: up to one of `ends`, then `padding`.

    `model` is a Qwen2.5-VL under adapters; `given` is what its processor makes of n prompts with an image each:
    `input_ids` and `attention_mask` (n, prompt) padded on the left, `pixel_values`, `image_grid_thw` (n, 3). Sampled
    from the whole vocabulary at temperature 1, or greedily.
    """
    base = model.get_base_model()
    training, device = model.training, base.get_input_embeddings().weight.device
    _without_dropout(model)
    try:
        places, prompts = firsts(given)
        of_row = torch.tensor(places, device=device)
        scores, cache, nearest = _read(base, {name: value.to(device) for name, value in prompts.items()})
        mask = given["attention_mask"].to(device).bool()
        steps = _Steps(base, cache, of_row, mask, length)
        ended = torch.zeros(len(places), dtype=torch.bool, device=device)
        stops = torch.tensor(ends, device=device)
        scores, nearest, tokens = scores[of_row], nearest[of_row], []
        for number in range(length):
            scores[:, base.config.image_token_id] = -torch.inf  # an image's place is no word: TRL forbids it too
            chosen = _sampled(scores) if sampled else scores.argmax(dim=-1)
            tokens.append(chosen.masked_fill(ended, padding))
            ended |= torch.isin(chosen, stops)
            look = device.type == "cpu" or number % LOOKED_AT == 0
            if number + 1 == length or (look and bool(ended.all())):
                break
            scores = steps(tokens[-1], nearest + 1 + number, mask.shape[1] + number)
        return torch.stack(tokens, dim=1).cpu()
    finally:
        model.train(training)


def _without_dropout(model: nn.Module) -> None:
    """In `eval()`, but for 4-bit layers: on a CPU with AVX512-BF16 bitsandbytes 0.50 would lay their weights out anew
    there, once and for all, with scales rounded to bf16, and fail for widths that are no multiple of 64.
    """
    model.eval()
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.training = True


def firsts(given: Mapping[str, Tensor]) -> tuple[list[int], dict[str, Tensor]]:
    """For each row the place of its prompt among those that differ, and what is `given` of those.

    Rows of one prompt follow one another.
    """
    ids, grids = given["input_ids"], given["image_grid_thw"]
    images = given["pixel_values"].split(grids.prod(dim=-1).tolist())
    assert len(images) == len(ids), "an image to each prompt"
    differ = [
        row
        for row in range(len(ids))
        if not (row and torch.equal(ids[row], ids[row - 1]) and torch.equal(images[row], images[row - 1]))
    ]
    places = [sum(first <= row for first in differ) - 1 for row in range(len(ids))]
    return places, {
        "input_ids": ids[differ],
        "attention_mask": given["attention_mask"][differ],
        "pixel_values": torch.cat([images[row] for row in differ]),
        "image_grid_thw": grids[differ],
    }


def _read(base: Any, prompts: dict[str, Tensor]) -> tuple[Tensor, Any, Tensor]:
    """Scores (n, vocabulary) of the first tokens, the cache, and each prompt's last position (n,)."""
    kinds = (prompts["input_ids"] == base.config.image_token_id).int()
    positions, _ = base.model.get_rope_index(
        prompts["input_ids"],
        mm_token_type_ids=kinds,
        image_grid_thw=prompts["image_grid_thw"],
        attention_mask=prompts["attention_mask"],
    )
    read = base.model(**prompts, mm_token_type_ids=kinds, position_ids=positions, use_cache=True)
    return base.lm_head(read.last_hidden_state[:, -1]), read.past_key_values, positions.amax(dim=(0, 2))


def _sampled(scores: Tensor) -> Tensor:
    """One token (n,) of each of (n, vocabulary)."""
    return torch.multinomial(scores.float().softmax(dim=-1), num_samples=1)[:, 0]


class _Steps:
    """The scores (n, vocabulary) after one more token of each text."""

    def __init__(self, base: Any, cache: Any, rows: Tensor, mask: Tensor, length: int) -> None:
        """`rows` (n,): each text's prompt in the cache; `mask` (n, prompt): False for padding."""
        text = base.model.language_model
        self._embed, self._turn, self._head = base.get_input_embeddings(), text.rotary_emb, base.lm_head
        self._norm = text.norm
        # None where nothing is padded: attention without a mask is the faster one.
        longer = torch.ones(len(mask), length, dtype=torch.bool, device=mask.device)
        self._mask = None if bool(mask.all()) else torch.cat((mask, longer), dim=1)[:, None, None]
        self._layers = []
        for layer, kept in zip(text.layers, cache.layers, strict=True):
            self._layers.append(_Layer(layer, kept.keys, kept.values, rows, length))
            kept.keys = kept.values = None  # copied: never are those of all layers there twice

    def __call__(self, tokens: Tensor, positions: Tensor, place: int) -> Tensor:
        """Of `tokens` (n,) at `positions` (n,), the `place`-th in the cache."""
        hidden: Tensor = self._embed(tokens)
        cos, sin = self._turn(hidden, positions[None, :, None])
        mask = None if self._mask is None else self._mask[..., : place + 1]
        for layer in self._layers:
            hidden = layer(hidden, cos, sin, place, mask)
        scores: Tensor = self._head(_normed(hidden, self._norm))
        return scores


class _Layer:
    """A decoder's layer for one token of each text, with the keys and values before it."""

    def __init__(self, layer: Any, keys: Tensor, values: Tensor, rows: Tensor, length: int) -> None:
        """`keys`, `values`: (prompts, heads, places, width of a head)."""
        attention, mlp = layer.self_attn, layer.mlp
        dtype = keys.dtype
        self._q, self._k, self._v, self._o = (
            projection(each, dtype) for each in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self._gate, self._up, self._down = (
            projection(each, dtype) for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self._before, self._after = layer.input_layernorm, layer.post_attention_layernorm
        self._scale, self._width = attention.scaling, attention.head_dim
        self._kept = []
        for prompts in (keys, values):
            kept = prompts.new_empty(len(rows), prompts.shape[1], prompts.shape[2] + length, prompts.shape[3])
            kept[:, :, : prompts.shape[2]] = prompts[rows]
            self._kept.append(kept)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, place: int, mask: Tensor | None) -> Tensor:
        """(n, width) to the same."""
        normed = _normed(hidden, self._before)
        keys, values = self._kept
        heads = keys.shape[1]
        turned = torch.cat((self._q(normed), self._k(normed)), dim=-1).unflatten(-1, (-1, self._width))
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
        keys[:, :, place] = turned[:, -heads:]
        values[:, :, place] = self._v(normed).unflatten(-1, (heads, -1))
        # Queries that share a head of keys stand where else the places of a text would.
        queries = turned[:, :-heads].unflatten(1, (heads, -1))
        attended = scaled_dot_product_attention(
            queries, keys[:, :, : place + 1], values[:, :, : place + 1], attn_mask=mask, scale=self._scale
        )
        hidden = hidden + self._o(attended.flatten(1))
        normed = _normed(hidden, self._after)
        return hidden + self._down(silu(self._gate(normed)) * self._up(normed))


def projection(layer: Any, dtype: torch.dtype) -> Project:
    """A dense layer with its adapter, as a function of (n, inputs)."""
    base = getattr(layer, "base_layer", layer)
    plain: Project = base
    if type(base) is nn.Linear:
        weight, bias = base.weight, base.bias

        def plain(inputs: Tensor) -> Tensor:
            return linear(inputs, weight, bias)

    if base is layer:
        return plain
    (name,) = layer.active_adapters
    down = layer.lora_A[name].weight.T.to(dtype)
    up = (layer.lora_B[name].weight * layer.scaling[name]).T.to(dtype)
    return lambda inputs: torch.addmm(plain(inputs), inputs @ down, up)


def _normed(hidden: Tensor, norm: Any) -> Tensor:
    return rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)
