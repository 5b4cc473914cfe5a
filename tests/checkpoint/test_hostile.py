"""Checkpoints that somebody, or something, has been at: one clear error each, and nothing is changed."""

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

import shoestring
from shoestring.checkpoint.files import sha256
from shoestring.checkpoint.light import WEIGHTS, load_light, save_light
from shoestring.checkpoint.manifest import signed
from shoestring.checkpoint.store import Store
from shoestring.engine.precision import mixed_precision
from shoestring.engine.state import TrainingState
from shoestring.errors import CheckpointError

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


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("whole")).save(4, training().pack()).path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


def copied(whole, place):
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    return Path(shutil.copytree(whole, place / "checkpoints" / whole.name))


def refused(folder):
    """The error of resuming from `folder`, with nothing changed by the attempt."""
    state = training()
    with torch.no_grad():
        state.model.weight += 1
    before = bits(state)
    with pytest.raises(CheckpointError) as caught:
        state.restore(Store(folder.parent).load().state)
    assert same(before, bits(state))
    return caught.value


def sign(folder, **changes):
    """Make the manifest say of the files beside it what is true of them now."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json" and path.is_file()
    }
    manifest = signed({"format": 1, "update": 4, "files": files} | changes)
    (folder / "manifest.json").write_text(json.dumps(manifest))


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    name=st.sampled_from(FILES),
    cut=st.booleans(),
    at=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    signing=st.booleans(),
)
def test_truncated_or_flipped_it_is_refused_or_says_nothing_else(whole, place, name, cut, at, bit, signing):
    """Signed anew, a flipped bit may still be a state, another one: then every tensor of it fits."""
    folder = copied(whole, place)
    data = bytearray((folder / name).read_bytes())
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    (folder / name).write_bytes(bytes(data))
    if not signing or name == "manifest.json":
        assert name in str(refused(folder))
        return
    sign(folder)
    state = training()
    before = bits(state)
    try:
        state.restore(Store(folder.parent).load().state)
    except CheckpointError:
        assert same(before, bits(state))


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
def test_any_json_in_a_states_place_is_refused(whole, place, section, value):
    if section == "scaler":  # in fp32 nothing is asked of it
        return
    folder = copied(whole, place)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {section: value}))
    sign(folder)
    refused(folder)


@FUZZ
@given(value=json_values)
def test_any_json_as_a_manifest_is_refused(whole, place, value):
    folder = copied(whole, place)
    (folder / "manifest.json").write_text(json.dumps(value))
    assert "manifest.json" in str(refused(folder))
    for name, true in {"format": 1, "update": 4, "files": {}}.items():
        if value != true:
            sign(folder, **{name: value})
            refused(folder)


TEXTS = {
    "deep nesting": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "a key twice": ('{"model": {}, "model": {}}', "twice"),
    "NaN": ('{"model": NaN}', "NaN"),
    "a huge float": ('{"model": 1e999}', "too large"),
    "a huge integer": ('{"model": ' + "9" * 5000 + "}", "cannot be read"),
    "bytes that are no text": (b"\xff\xfe", "cannot be read"),
    "nothing": ("", "cannot be read"),
    "a list": ("[]", "not the state of these files"),
}


@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
@pytest.mark.parametrize(("text", "why"), TEXTS.values(), ids=TEXTS)
def test_json_that_is_none_is_refused(whole, tmp_path, name, text, why):
    folder = copied(whole, tmp_path)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    if name == "state.json":
        sign(folder)
    error = str(refused(folder))
    assert name in error
    assert why in error or name == "manifest.json"


def tensors_of(folder, **changes):
    """Write a model of other tensors, and a manifest that vouches for it."""
    state = training().pack()
    state["model"] = {**state["model"], **changes}
    shutil.rmtree(folder)
    return Store(folder.parent).save(4, state).path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weight": torch.zeros(2, 4)}, r"weight was saved as \(2, 4\) of float32, here it is \(2, 3\) of float32"),
        ({"bias": torch.zeros(2, dtype=torch.int64)}, r"bias was saved as \(2,\) of int64"),
        ({"more": torch.zeros(1)}, "more is not the model's"),
        ({"bias": 3}, "bias is no tensor"),
    ],
)
def test_other_tensors_are_refused_by_name_before_any_is_in_its_place(whole, tmp_path, changes, why):
    error = refused(tensors_of(copied(whole, tmp_path), **changes))
    assert re.search(why, str(error))


def test_another_optimizers_states_are_refused(whole, tmp_path):
    state = training().pack()
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7)
    state["optimizer"]["state"][5] = {}
    state["optimizer"]["param_groups"][0]["lr"] = "fast"
    told = "\n".join(refused(Store(tmp_path).save(4, state).path).problems)
    assert "exp_avg of parameter 0 was saved as (7,)" in told
    assert "states of 5" in told
    assert "lr of group 0 was 'fast'" in told


def test_links_and_pipes_are_not_followed(whole, tmp_path):
    outside = tmp_path / "outside.safetensors"
    folder = copied(whole, tmp_path)
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    assert "not a regular file" in str(refused(folder))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "not a regular file" in str(refused(folder))
    elsewhere = tmp_path / "elsewhere"
    shutil.rmtree(folder)
    shutil.copytree(whole, elsewhere)
    folder.symlink_to(elsewhere)
    assert "a link to elsewhere" in str(refused(folder))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "model.pkl", "x" * 300])
def test_names_that_lead_elsewhere_are_refused(whole, tmp_path, name):
    folder = copied(whole, tmp_path)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    sign(folder, files=files | {name: {"bytes": 0, "sha256": "0"}})
    assert "it does not describe this checkpoint" in str(refused(folder))


def test_files_that_no_section_has_are_refused(whole, tmp_path):
    folder = copied(whole, tmp_path)
    shutil.copyfile(folder / "model.safetensors", folder / "other.safetensors")
    sign(folder)
    assert "not the state of these files" in str(refused(folder))


def test_names_of_directories_that_are_no_checkpoints_are_left_alone(whole, tmp_path):
    names = ["update-1", "update-" + "9" * 40, "update-٠٠٠٠٠٠٠٤", ".replaced-x", "update-000000000004"]
    folder = copied(whole, tmp_path)
    for name in names:
        (folder.parent / name).mkdir()
    assert Store(folder.parent).updates() == [4]
    assert Store(folder.parent).load().update == 4


@FUZZ
@given(cut=st.booleans(), at=st.integers(0, 10**6), bit=st.integers(0, 7), manifest=st.booleans())
def test_weights_that_are_truncated_or_flipped_load_whole_or_not_at_all(place, cut, at, bit, manifest):
    """Without a manifest a flipped bit may still be a weight, another one."""
    torch.manual_seed(0)
    path = save_light(place / "light", nn.Linear(3, 2), {"update": 1})
    if not manifest:
        (place / "light" / "manifest.json").unlink()
    data = bytearray(path.read_bytes())
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    (place / "light" / WEIGHTS).write_bytes(bytes(data))
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        load_light(place / "light", model)
    except CheckpointError:
        assert same(before, dict(model.state_dict()))
    else:
        assert not cut and not manifest


def test_nothing_is_unpickled_anywhere():
    """`torch.load` and pickle in all their names, and numpy's way to them."""
    forbidden = re.compile(r"\b(torch\.load|torch\.save|pickle|cPickle|dill|joblib|marshal|shelve|allow_pickle=True)\b")
    root = Path(shoestring.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert [line for line in found if "no pickle" not in line] == []
