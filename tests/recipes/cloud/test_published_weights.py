from pathlib import Path

import pytest
import safetensors.torch
import torch

from shoestring.base.errors import CheckpointError
from shoestring_recipes.cloud import Cloud, Options
from shoestring_recipes.cloud.published_weights import translate_name

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


@pytest.mark.parametrize(("published", "renamed"), RENAMED.items())
def test_published_tensor_names_are_translated(published: str, renamed: str) -> None:
    assert translate_name(published) == renamed
    assert renamed in Cloud(Options(size="tiny")).model().state_dict()


def published_name(name: str) -> str:
    """Return the inverse of `translate_name` for the tiny network."""
    for published, renamed in RENAMED.items():
        if translate_name(published) == name == renamed:
            return published
    return name


def test_all_weights_but_derived_tensors_are_loaded(tmp_path: Path) -> None:
    trained = Cloud(Options(size="tiny")).model().state_dict()
    file = tmp_path / "CR_net.safetensors"
    derived = {LAYER + "attn.relative_position_index": torch.zeros(64, 64)}
    safetensors.torch.save_file({published_name(name): value for name, value in trained.items()} | derived, file)
    authors_file = tmp_path / "CR_net.pth"  # as `ModelBase.save_network` of the authors writes it
    torch.save({"network": safetensors.torch.load_file(file)}, authors_file)
    other = Cloud(Options(size="tiny", crop=16))
    for model in (
        *(Cloud(Options(size="tiny", weights_from=path)).model() for path in (file, authors_file)),
        other.pretrained(authors_file),
    ):
        loaded = model.state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def test_unreadable_or_mismatched_files_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "CR_net.safetensors"
    safetensors.torch.save_file({"SFENet1.weight": torch.zeros(2)}, file)
    with pytest.raises(CheckpointError, match="another model"):
        Cloud(Options(size="tiny", weights_from=file)).model()
    file.write_bytes(b"pickled")
    with pytest.raises(CheckpointError, match="cannot be loaded") as error:
        Cloud(Options(size="tiny", weights_from=file)).model()
    assert error.value.hint and "docs/guides/data.md" in error.value.hint
