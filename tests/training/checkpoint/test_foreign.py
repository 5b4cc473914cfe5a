"""Weights as other programs write them: torch.save in both of its formats, safetensors, and shards of either."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.foreign import check_weights, load_foreign, read_state_dict
from shoestring.training.checkpoint.light import save_light


class Malicious:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self):
        return os.mkdir, (str(self._file),)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


STATE = network().state_dict()
FIRST, SECOND = ({name: STATE[name] for name in sorted(STATE)[part::2]} for part in (0, 1))


def write_index(folder: Path, name: str, parts: dict[str, dict[str, torch.Tensor]]) -> None:
    names = {tensor: file for file, tensors in parts.items() for tensor in tensors}
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def write(folder: Path, kind: str) -> Path:
    """Write the state in one of the formats, as the programs do that publish it."""
    folder.mkdir()
    is_zip = "legacy" not in kind
    match kind.split()[0]:
        case "safetensors":
            save_file(STATE, folder / "model.safetensors", {"format": "pt"})
        case "bin":
            torch.save(STATE, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
        case "bins":
            files = {f"pytorch_model-0000{n}-of-00002.bin": part for n, part in enumerate((FIRST, SECOND), start=1)}
            for name, part in files.items():
                torch.save(part, folder / name, _use_new_zipfile_serialization=is_zip)
            write_index(folder, "pytorch_model.bin", files)
        case "shards":
            files = {f"model-0000{n}-of-00002.safetensors": part for n, part in enumerate((FIRST, SECOND), start=1)}
            for name, part in files.items():
                save_file(part, folder / name)
            write_index(folder, "model.safetensors", files)
        case "network":
            torch.save({"network": nn.DataParallel(network()).state_dict()}, folder / "CR_net.pth",
                       _use_new_zipfile_serialization=is_zip)  # fmt: skip
            return folder / "CR_net.pth"
        case "checkpoint":
            metrics = {"f1": np.float64(0.5), "history": {"loss": [np.float32(1.0), 2.0]}, "epoch": 3}
            optimizer = torch.optim.AdamW(network().parameters()).state_dict()
            torch.save({"model_state_dict": STATE, "optimizer_state_dict": optimizer, **metrics}, folder / "best.pt",
                       _use_new_zipfile_serialization=is_zip)  # fmt: skip
    return folder


TORCH_KINDS = [f"{kind}{version}" for kind in ("bin", "bins", "network", "checkpoint") for version in ("", " legacy")]


@pytest.mark.parametrize("kind", ["safetensors", "shards", *TORCH_KINDS])
def test_weights_of_every_format_are_loaded(kind, tmp_path):
    path = write(tmp_path / "weights", kind)
    check_weights(path)
    model = network()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    load_foreign(path, model)
    assert all(torch.equal(value, STATE[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_in_a_file_is_not_executed(is_zip, tmp_path):
    file, evidence = tmp_path / "pytorch_model.bin", tmp_path / "executed"
    content = {**STATE, "network": {"x": Malicious(evidence)}}
    torch.save(content, file, _use_new_zipfile_serialization=is_zip)
    for read in (check_weights, read_state_dict):
        for path in (file, tmp_path):
            with pytest.raises(CheckpointError, match=r"posix\.mkdir, which is not a tensor and may execute code"):
                read(path)
    file.write_bytes(pickle.dumps(Malicious(evidence)))
    with pytest.raises(CheckpointError, match=r"neither safetensors nor a file of torch\.save"):
        read_state_dict(file)
    assert not evidence.exists()
    torch.load(write_malicious(tmp_path / "proof.pt", evidence), weights_only=False)
    assert evidence.exists()  # the pickle does execute code elsewhere


def write_malicious(file: Path, evidence: Path) -> Path:
    torch.save({"x": Malicious(evidence)}, file)
    return file


def test_nothing_larger_than_the_file_is_read(tmp_path):
    file = tmp_path / "bomb.pth"
    torch.save({"weight": torch.zeros(1).expand(10**12)}, file)
    with pytest.raises(CheckpointError, match="not an ordinary tensor of the file's size"):
        read_state_dict(file)
    torch.save({"weight": torch.zeros(10**6)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert file.stat().st_size < 10**5
    with pytest.raises(CheckpointError, match="compressed"):
        read_state_dict(file)


def test_shards_lie_beside_their_index(tmp_path):
    folder = write(tmp_path / "weights", "bins")
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"there is no file pytorch_model-00002-of-00002\.bin"):
        check_weights(folder)
    torch.save(SECOND, tmp_path / "outside.bin")
    write_index(folder, "pytorch_model.bin", {"../outside.bin": SECOND, "pytorch_model-00001-of-00002.bin": FIRST})
    with pytest.raises(CheckpointError, match="not a file beside it"):
        read_state_dict(folder)
    write_index(folder, "pytorch_model.bin", {"a" * 5000: SECOND, "pytorch_model-00001-of-00002.bin": FIRST})
    with pytest.raises(CheckpointError, match="there is no file aaa"):  # no path can have this name
        check_weights(folder)


def test_other_content_is_an_error_and_changes_nothing(tmp_path):
    file, model = tmp_path / "x.pt", network()
    for content, reason in (
        ([1], "no state dict, but list"),
        ({}, "no state dict"),
        ({"model": {"a": 1}}, "'a' in it is not a tensor"),
        ({"0.weight": torch.ones(4, 3)}, "another model"),
    ):
        torch.save(content, file)
        with pytest.raises(CheckpointError, match=reason):
            load_foreign(file, model)
    assert torch.equal(model[0].weight, STATE["0.weight"])
    for path in (tmp_path / "absent", tmp_path.parent / "absent.bin"):
        with pytest.raises(CheckpointError, match="no file"):
            check_weights(path)
    torch.save(STATE, tmp_path / "y.pt")
    with pytest.raises(CheckpointError, match=r"2 files of weights: x\.pt, y\.pt"):
        check_weights(tmp_path)


def test_tied_weights_may_be_saved_once(tmp_path):
    def tied() -> nn.Module:
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, bias=False)})
        model["b"].weight = model["a"].weight
        return model

    saved, model = tied(), tied()
    save_file({"b.weight": saved["b"].weight.data, "a.bias": saved["a"].bias.data}, tmp_path / "model.safetensors")
    load_foreign(tmp_path, model)
    assert torch.equal(model["a"].weight, saved["a"].weight) and model["a"].weight is model["b"].weight


def test_the_weights_of_a_run_are_verified(tmp_path):
    model = network()
    save_light(tmp_path, model, {"update": 3})
    load_foreign(tmp_path, network())
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_foreign(tmp_path, network())
