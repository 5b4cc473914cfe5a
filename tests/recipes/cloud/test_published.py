from pathlib import Path

import pytest
import safetensors.torch
import torch

from shoestring.errors import CheckpointError
from shoestring.recipes.cloud import Cloud, Options
from shoestring.recipes.cloud.published import ours

LAYER = "RDBs.1.convs.0."
RENAMED = {
    "SFENet1.weight": "shallow.0.weight",
    "SFENet2_SAR.bias": "deeper.1.bias",
    LAYER + "conv.0.weight": "blocks.1.layers.0.0.0.weight",
    LAYER + "conv_SAR.0.bias": "blocks.1.layers.0.1.0.bias",
    LAYER + "attn.relative_position_bias_table": "blocks.1.attention.0.positions",
    LAYER + "attn.attn_fuse_1x1conv.weight": "blocks.1.attention.0.gate.weight",
    LAYER + "attn.qkv.weight": "blocks.1.attention.0.project.0.weight",
    LAYER + "attn.proj_SAR.bias": "blocks.1.attention.0.merge.1.bias",
    LAYER + "norm2_SAR.weight": "blocks.1.attention.0.norm.1.weight",
    LAYER + "mlp.fc1.weight": "blocks.1.attention.0.dense.0.0.weight",
    LAYER + "mlp_SAR.fc2.bias": "blocks.1.attention.0.dense.1.2.bias",
    "RDBs.0.LFF_SAR.weight": "blocks.0.merge.1.weight",
    "DF.0.fac_warp.0.0.weight": "fusions.0.kernels.0.weight",
    "DF.0.fac_warp.1.stem.0.weight": "fusions.0.kernels.2.convolutions.0.weight",
    "DF.0.fac_warp.2.stem.2.bias": "fusions.0.kernels.3.convolutions.2.bias",
    "DF.0.fac_warp.3.0.weight": "fusions.0.kernels.4.weight",
    "sar_fuse_1x1conv.1.weight": "fusions.1.gates.0.weight",
    "opt_distribute_1x1conv.1.bias": "fusions.1.gates.1.bias",
    "GFF.1.weight": "gather.1.weight",
    "UPNet.2.bias": "enlarge.2.bias",
}


@pytest.mark.parametrize(("theirs", "renamed"), RENAMED.items())
def test_a_published_tensor_finds_its_place(theirs: str, renamed: str) -> None:
    assert ours(theirs) == renamed
    assert renamed in Cloud(Options(size="tiny")).model().state_dict()


def theirs(name: str) -> str:
    """`ours` undone, for the tiny network."""
    for one, renamed in RENAMED.items():
        if ours(one) == name == renamed:
            return one
    return name


def test_all_weights_of_a_file_are_taken_and_what_follows_from_the_shape_is_not(tmp_path: Path) -> None:
    trained = Cloud(Options(size="tiny")).model().state_dict()
    file = tmp_path / "CR_net.safetensors"
    computed = {LAYER + "attn.relative_position_index": torch.zeros(64, 64)}
    safetensors.torch.save_file({theirs(name): value for name, value in trained.items()} | computed, file)
    begun = Cloud(Options(size="tiny", weights_from=file)).model().state_dict()
    assert all(torch.equal(begun[name], value) for name, value in trained.items())


def test_a_file_of_another_model_or_none_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "CR_net.safetensors"
    safetensors.torch.save_file({"SFENet1.weight": torch.zeros(2)}, file)
    with pytest.raises(CheckpointError, match="another model"):
        Cloud(Options(size="tiny", weights_from=file)).model()
    file.write_bytes(b"pickled")
    with pytest.raises(CheckpointError, match="cannot be loaded") as refused:
        Cloud(Options(size="tiny", weights_from=file)).model()
    assert refused.value.hint and "docs/data.md" in refused.value.hint
