"""Qwen2.5-VL's vision tower for images of one size, whose windows do not depend on tensor values.

transformers accepts images of any sizes in one sequence. In each of the 32 layers it reads the borders of the windows
from the GPU, which synchronizes with its queue of kernels, and then attends to one window after the other. Where all
images have one size, and windows fill it without remainder, a reshape is equivalent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    Qwen2_5_VLVisionAttention,
    apply_rotary_pos_emb_vision,
)


class SegmentAttention(Qwen2_5_VLVisionAttention):
    """Attention within segments of equal length: maps patches (segments * length, width) to the same shape."""

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor | None,  # noqa: ARG002 - a block passes the borders as well
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        max_seqlen: int | None = None,
        **_: Any,
    ) -> Tensor:
        assert position_embeddings and max_seqlen
        query, key, value = self.qkv(hidden_states).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(1)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        query, key, value = (heads.unflatten(0, (-1, max_seqlen)).transpose(1, 2) for heads in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, scale=self.scaling)
        projected: Tensor = self.proj(attended.transpose(1, 2).reshape(hidden_states.shape))
        return projected


class ImageLayout(nn.Module):
    """Positions and windows of the patches of an image of `grid` (rows, columns), multiples of a window's side."""

    positions: Tensor
    """(patches, 2) int64: row and column of each patch; the patches of a token are adjacent."""
    order: Tensor
    """(tokens,) int64: an order of the tokens in which those of a window are adjacent."""

    def __init__(self, grid: tuple[int, int], *, merge: int, window: int) -> None:
        """Compute the layout, with `merge` patches per side of a token and `window` tokens per side of a window."""
        super().__init__()
        rows, columns = grid
        if rows % (merge * window) or columns % (merge * window):
            raise ValueError(f"windows of {merge * window} patches do not fill {rows} x {columns}")
        self.patches, self.per_window = rows * columns, (merge * window) ** 2
        self.tokens = self.patches // merge**2
        coordinates = torch.cartesian_prod(*map(torch.arange, grid))
        self.register_buffer("positions", _to_blocks(coordinates, grid, merge), False)
        tokens = (rows // merge, columns // merge)
        self.register_buffer("order", _to_blocks(torch.arange(self.tokens)[:, None], tokens, window)[:, 0], False)

    def encode(self, tower: Qwen2_5_VisionTransformerPretrainedModel, patches: Tensor) -> Tensor:
        """Encode patches (n, patches, values) as features (n * tokens, width of the language model).

        These are the steps of the tower's `forward`, which up to transformers 5.0 computes windows and positions from
        the values of a tensor. The modules that it calls are the same in all versions.
        """
        modules: Any = tower
        count = patches.shape[0]
        first = torch.arange(count, device=patches.device)[:, None]
        order = (first * self.tokens + self.order).flatten()

        def to_windows(values: Tensor) -> Tensor:
            tokens: Tensor = values.unflatten(0, (len(order), -1))
            return tokens[order].flatten(0, 1)

        hidden = to_windows(modules.patch_embed(patches.flatten(0, 1).to(tower.dtype)))
        angles = (self.positions.repeat(count, 1)[..., None] * modules.rotary_pos_emb.inv_freq).flatten(1)
        angles = to_windows(torch.cat((angles, angles), dim=-1))
        position_embeddings = angles.cos(), angles.sin()
        for number, block in enumerate(modules.blocks):
            hidden = block(
                hidden,
                # Borders are only needed for segments of different lengths; `SegmentAttention` does not read them.
                cu_seqlens=None,
                max_seqlen=self.patches if number in modules.fullatt_block_indexes else self.per_window,
                position_embeddings=position_embeddings,
            )
        features: Tensor = modules.merger(hidden)[torch.argsort(order)]
        return features


def attend_by_segment(tower: Qwen2_5_VisionTransformerPretrainedModel) -> None:
    """Replace the attention of each layer by `SegmentAttention`, with the same weights under the same names."""
    blocks: Any = tower.blocks
    for block in blocks:
        with torch.device("meta"):
            attention = SegmentAttention(tower.config)
        attention.qkv, attention.proj = block.attn.qkv, block.attn.proj
        block.attn = attention


def _to_blocks(values: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Reorder (rows * columns, ...) from row-major order to blocks of `side` x `side`, each in row-major order."""
    rows, columns = grid
    return values.view(rows // side, side, columns // side, side, -1).transpose(1, 2).flatten(0, 3)
