"""Weights as the authors of GLF-CR publish them: the same tensors under other names.

The names are those of `RDN_residual_CR` (github.com/xufangchn/GLF-CR, `codes/net_CR_RDN.py`). Their file is
torch's own, which is not opened here; HOW makes a safetensors file of it, once.
"""

import re
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import nn

from shoestring.checkpoint.fitting import misfits
from shoestring.errors import CheckpointError

HOW = "docs/data.md has the line that makes one of a published CR_net.pth"
_LAYER = r"RDBs\.(\d+)\.convs\.(\d+)"
_NAMES = [
    (r"SFENet1(_SAR)?", r"shallow.{0}"),
    (r"SFENet2(_SAR)?", r"deeper.{0}"),
    (rf"{_LAYER}\.conv(_SAR)?\.0", r"blocks.\1.layers.\2.{0}.0"),
    (rf"{_LAYER}\.attn\.relative_position_bias_table", r"blocks.\1.attention.\2.positions"),
    (rf"{_LAYER}\.attn\.attn_fuse_1x1conv", r"blocks.\1.attention.\2.gate"),
    (rf"{_LAYER}\.attn\.qkv(_SAR)?", r"blocks.\1.attention.\2.project.{0}"),
    (rf"{_LAYER}\.attn\.proj(_SAR)?", r"blocks.\1.attention.\2.merge.{0}"),
    (rf"{_LAYER}\.norm2(_SAR)?", r"blocks.\1.attention.\2.norm.{0}"),
    (rf"{_LAYER}\.mlp(_SAR)?\.fc1", r"blocks.\1.attention.\2.dense.{0}.0"),
    (rf"{_LAYER}\.mlp(_SAR)?\.fc2", r"blocks.\1.attention.\2.dense.{0}.2"),
    (r"RDBs\.(\d+)\.LFF(_SAR)?", r"blocks.\1.merge.{0}"),
    (r"DF\.(\d+)\.fac_warp\.0\.0", r"fusions.\1.kernels.0"),
    (r"DF\.(\d+)\.fac_warp\.1\.stem", r"fusions.\1.kernels.2.convolutions"),
    (r"DF\.(\d+)\.fac_warp\.2\.stem", r"fusions.\1.kernels.3.convolutions"),
    (r"DF\.(\d+)\.fac_warp\.3\.0", r"fusions.\1.kernels.4"),
    (r"sar_fuse_1x1conv\.(\d+)", r"fusions.\1.gates.0"),
    (r"opt_distribute_1x1conv\.(\d+)", r"fusions.\1.gates.1"),
    (r"GFF", r"gather"),
    (r"UPNet", r"enlarge"),
]
"""What a name of theirs begins with, and one of ours; {0} is 1 where `_SAR` stands, else 0."""
_COMPUTED = (".relative_position_index", ".attn_mask")
"""Tensors of theirs that follow from the shape."""


def load(file: Path, model: nn.Module) -> None:
    """Take the model's weights from a .safetensors file with the published names.

    Raises CheckpointError where it cannot be read or is of another model; the model is as it was then.
    """
    try:
        theirs = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be loaded: {error}", hint=HOW) from error
    weights = {ours(name): value for name, value in theirs.items() if not name.endswith(_COMPUTED)}
    if problems := misfits(weights, model.state_dict(), dtypes=False):
        raise CheckpointError(f"{file} cannot be loaded: it is of another model", problems=problems[:20])
    model.load_state_dict(weights)


def ours(name: str) -> str:
    """Our name for a tensor of theirs; its own where there is none."""
    for begins, becomes in _NAMES:
        if found := re.match(begins + r"\.|" + begins + "$", name, re.ASCII):
            end = name[found.end() :]
            of_radar = int("_SAR" in found[0])
            renamed = re.sub(begins, becomes.replace("{0}", str(of_radar)), found[0], count=1)
            return renamed + end
    return name
