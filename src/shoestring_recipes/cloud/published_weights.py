"""The published weights of GLF-CR: the same tensors under other names.

The names are those of `RDN_residual_CR` (github.com/xufangchn/GLF-CR, `codes/net_CR_RDN.py`). Its authors store them as
`torch.save({"network": state_dict})` in `CR_net.pth`.
"""

import re
from pathlib import Path

from torch import nn

from shoestring.training.checkpoint.foreign import load_state, read_state_dict

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
"""Prefix of a published name, and of the name here; {0} is 1 if the published name has `_SAR`, else 0."""
_DERIVED = (".relative_position_index", ".attn_mask")
"""Published tensors that are derived from the shape and therefore not loaded."""


def load_published(file: Path, model: nn.Module) -> None:
    """Load the model's weights from a file with the published names, or the names here.

    Raises CheckpointError if the file cannot be read or belongs to another model; the model is unchanged then.
    """
    published = read_state_dict(file)
    weights = {translate_name(name): value for name, value in published.items() if not name.endswith(_DERIVED)}
    load_state(file, weights, model)


def translate_name(name: str) -> str:
    """Return the name here of a published tensor; the name itself if it is unknown."""
    for pattern, replacement in _NAMES:
        if match := re.match(pattern + r"\.|" + pattern + "$", name, re.ASCII):
            suffix = name[match.end() :]
            image_index = int("_SAR" in match[0])
            prefix = re.sub(pattern, replacement.replace("{0}", str(image_index)), match[0], count=1)
            return prefix + suffix
    return name
