"""Damaged and manipulated checkpoints: each gives one clear error and changes nothing."""

import copy
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import sha256
from shoestring.training.checkpoint.light import WEIGHTS, load_light, save_light
from shoestring.training.checkpoint.manifest import add_digest
from shoestring.training.checkpoint.store import Store
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.state import TrainingState

FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")


def training(width=3, optimizer=torch.optim.AdamW):
    torch.manual_seed(0)
    model = nn.Linear(width, 2)
    state = TrainingState(
        model=model,
        optimizer=optimizer(model.parameters(), lr=0.1),
        mixed_precision=mixed_precision("fp32", torch.device("cpu")),
        learning_rates=[0.1],
        update=4,
    )
    model(torch.ones(1, width)).sum().backward()
    state.optimizer.step()
    return state


def bits(state):
    return copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict(), state.update, state.history))


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("intact")).save(4, training().pack()).path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("workspace")


def copy_checkpoint(checkpoint, workspace):
    shutil.rmtree(workspace / "checkpoints", ignore_errors=True)
    return Path(shutil.copytree(checkpoint, workspace / "checkpoints" / checkpoint.name))


def restore_error(folder):
    """Return the error of resuming from `folder`, and check that the attempt changes nothing."""
    state = training()
    with torch.no_grad():
        state.model.weight += 1
    before = bits(state)
    with pytest.raises(CheckpointError) as caught:
        state.restore(Store(folder.parent).load().state)
    assert equal(before, bits(state))
    return caught.value


def sign(folder, **changes):
    """Rewrite the manifest with the actual sizes and digests of the files in `folder`."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json" and path.is_file()
    }
    manifest = add_digest({"format": 1, "update": 4, "files": files} | changes)
    (folder / "manifest.json").write_text(json.dumps(manifest))


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    name=st.sampled_from(FILES),
    cut=st.booleans(),
    position=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    signing=st.booleans(),
)
def test_truncated_or_flipped_checkpoint_is_rejected(checkpoint, workspace, name, cut, position, bit, signing):
    """With a new digest a flipped bit may give another valid state: then every tensor of it fits."""
    folder = copy_checkpoint(checkpoint, workspace)
    data = bytearray((folder / name).read_bytes())
    position %= len(data)
    if cut:
        del data[position:]
    else:
        data[position] ^= 1 << bit
    (folder / name).write_bytes(bytes(data))
    if not signing or name == "manifest.json":
        assert name in str(restore_error(folder))
        return
    sign(folder)
    state = training()
    before = bits(state)
    try:
        state.restore(Store(folder.parent).load().state)
    except CheckpointError:
        assert equal(before, bits(state))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["$tensor", "$map", "$tuple", "$float"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@FUZZ
@given(section=st.sampled_from(["model", "optimizer", "progress", "scaler"]), value=json_values)
def test_arbitrary_json_as_section_is_rejected(checkpoint, workspace, section, value):
    if section == "scaler":  # not used in fp32
        return
    folder = copy_checkpoint(checkpoint, workspace)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {section: value}))
    sign(folder)
    restore_error(folder)


@FUZZ
@given(value=json_values)
def test_arbitrary_json_as_manifest_is_rejected(checkpoint, workspace, value):
    folder = copy_checkpoint(checkpoint, workspace)
    (folder / "manifest.json").write_text(json.dumps(value))
    assert "manifest.json" in str(restore_error(folder))
    for name, correct in {"format": 1, "update": 4, "files": {}}.items():
        if value != correct:
            sign(folder, **{name: value})
            restore_error(folder)


TEXTS = {
    "deep nesting": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "a key twice": ('{"model": {}, "model": {}}', "twice"),
    "NaN": ('{"model": NaN}', "NaN"),
    "a huge float": ('{"model": 1e999}', "too large"),
    "a huge integer": ('{"model": ' + "9" * 5000 + "}", "cannot be read"),
    "bytes that are no text": (b"\xff\xfe", "cannot be read"),
    "nothing": ("", "cannot be read"),
    "a list": ("[]", "does not match the files"),
}


@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
@pytest.mark.parametrize(("text", "reason"), TEXTS.values(), ids=TEXTS)
def test_invalid_json_is_rejected(checkpoint, tmp_path, name, text, reason):
    folder = copy_checkpoint(checkpoint, tmp_path)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    if name == "state.json":
        sign(folder)
    error = str(restore_error(folder))
    assert name in error
    assert reason in error or name == "manifest.json"


def save_other_tensors(folder, **changes):
    """Save a model with changed tensors under a valid manifest."""
    state = training().pack()
    state["model"] = {**state["model"], **changes}
    shutil.rmtree(folder)
    return Store(folder.parent).save(4, state).path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight": torch.zeros(2, 4)}, r"weight was saved as \(2, 4\) of float32, but is \(2, 3\) of float32"),
        ({"bias": torch.zeros(2, dtype=torch.int64)}, r"bias was saved as \(2,\) of int64"),
        ({"more": torch.zeros(1)}, "more is not in the model"),
        ({"bias": 3}, "bias is not a tensor"),
    ],
)
def test_wrong_tensors_are_rejected_by_name_before_loading(checkpoint, tmp_path, changes, reason):
    error = restore_error(save_other_tensors(copy_checkpoint(checkpoint, tmp_path), **changes))
    assert re.search(reason, str(error))


def test_state_of_another_optimizer_is_rejected(checkpoint, tmp_path):
    state = training().pack()
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7)
    state["optimizer"]["state"][5] = {}
    state["optimizer"]["param_groups"][0]["lr"] = "fast"
    problems = "\n".join(restore_error(Store(tmp_path).save(4, state).path).problems)
    assert "exp_avg of parameter 0 was saved as (7,)" in problems
    assert "states of parameter 5" in problems
    assert "lr of group 0 was saved as 'fast'" in problems


def test_links_and_pipes_are_not_followed(checkpoint, tmp_path):
    outside = tmp_path / "outside.safetensors"
    folder = copy_checkpoint(checkpoint, tmp_path)
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    assert "not a regular file" in str(restore_error(folder))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "not a regular file" in str(restore_error(folder))
    target = tmp_path / "target"
    shutil.rmtree(folder)
    shutil.copytree(checkpoint, target)
    folder.symlink_to(target)
    assert "a symbolic link" in str(restore_error(folder))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "model.pkl", "x" * 300])
def test_file_names_outside_the_checkpoint_are_rejected(checkpoint, tmp_path, name):
    folder = copy_checkpoint(checkpoint, tmp_path)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    sign(folder, files=files | {name: {"bytes": 0, "sha256": "0"}})
    assert "it does not describe this checkpoint" in str(restore_error(folder))


def test_files_without_section_are_rejected(checkpoint, tmp_path):
    folder = copy_checkpoint(checkpoint, tmp_path)
    shutil.copyfile(folder / "model.safetensors", folder / "other.safetensors")
    sign(folder)
    assert "does not match the files" in str(restore_error(folder))


def test_other_directories_are_ignored(checkpoint, tmp_path):
    names = ["update-1", "update-" + "9" * 40, "update-٠٠٠٠٠٠٠٤", ".replaced-x", "update-000000000004"]
    folder = copy_checkpoint(checkpoint, tmp_path)
    for name in names:
        (folder.parent / name).mkdir()
    assert Store(folder.parent).updates() == [4]
    assert Store(folder.parent).load().update == 4


@FUZZ
@given(cut=st.booleans(), position=st.integers(0, 10**6), bit=st.integers(0, 7), manifest=st.booleans())
def test_truncated_or_flipped_weights_load_completely_or_not(workspace, cut, position, bit, manifest):
    """Without a manifest a flipped bit may give another valid weight."""
    torch.manual_seed(0)
    path = save_light(workspace / "light", nn.Linear(3, 2), {"update": 1})
    if not manifest:
        (workspace / "light" / "manifest.json").unlink()
    data = bytearray(path.read_bytes())
    position %= len(data)
    if cut:
        del data[position:]
    else:
        data[position] ^= 1 << bit
    (workspace / "light" / WEIGHTS).write_bytes(bytes(data))
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        load_light(workspace / "light", model)
    except CheckpointError:
        assert equal(before, dict(model.state_dict()))
    else:
        assert not cut and not manifest


PROGRESS = {
    "a number that is a bool": ({"update": True}, "'True' is not a number of completed updates"),
    "a number beyond all counts": ({"update": 10**30}, "is not a number of completed updates"),
    "epochs that are numbers": ({"history": [1]}, "not a list of objects"),
    "an epoch without metrics": ({"history": [{"epoch": 1, "update": 2}]}, "an epoch has no metrics"),
    "an epoch of another type": ({"history": [{"epoch": "x", "update": 2, "metrics": {}}]}, "epoch: 'x' is not"),
    "epochs out of order": (
        {"history": [{"epoch": epoch, "update": epoch, "metrics": {}} for epoch in (2, 1)]},
        "not in order",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), PROGRESS.values(), ids=PROGRESS)
def test_progress_of_another_shape_is_rejected(checkpoint, tmp_path, changes, reason):
    state = training().pack()
    state["progress"] |= changes
    assert reason in str(restore_error(Store(tmp_path).save(4, state).path))
