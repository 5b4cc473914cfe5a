from typing import Any

import pytest
import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from shoestring_recipes.chart.vision import ImageLayout, attend_by_segment


@torch.no_grad()
@pytest.mark.parametrize(("grid", "merge", "window"), [((16, 24), 2, 4), ((8, 16), 2, 4), ((12, 6), 1, 3)])
def test_features_match_those_of_transformers(grid: tuple[int, int], merge: int, window: int) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    config: Any = Qwen2_5_VLVisionConfig(
        **options, out_hidden_size=48, spatial_merge_size=merge, window_size=14 * merge * window,
        fullatt_block_indexes=[1],
    )  # fmt: skip
    tower: Any = Qwen2_5_VisionTransformerPretrainedModel._from_config(config).eval()
    for weights in tower.parameters():
        if weights.dim() > 1:
            weights.normal_(std=0.3)  # with initial weights attention is almost uniform, and errors would not show
    patches = torch.randn(2, grid[0] * grid[1], 3 * 2 * 14 * 14)
    expected = tower(patches.flatten(0, 1), grid_thw=torch.tensor([[1, *grid]] * 2))
    layout = ImageLayout(grid, merge=merge, window=window)
    attend_by_segment(tower)
    # transformers 4 returns the features themselves.
    torch.testing.assert_close(layout.encode(tower, patches), getattr(expected, "pooler_output", expected))
    layout.positions.copy_(layout.positions.flip(0))
    assert not torch.allclose(layout.encode(tower, patches), getattr(expected, "pooler_output", expected), atol=1e-2)


def test_windows_must_fill_the_image() -> None:
    with pytest.raises(ValueError, match="do not fill 32 x 36"):
        ImageLayout((32, 36), merge=2, window=4)
