"""What a manifest may say: all of it comes back, and what does not hold together is one finding about the manifest."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.checkpoint.manifest import (
    MANIFEST,
    Damaged,
    FileEntry,
    Manifest,
    Slice,
    difference,
    parse,
    read_manifest,
    signed,
)
from shoestring.errors import CheckpointError
from tests.checkpoint.test_hostile import json_values

FOLDER = Path("runs/x/checkpoints/update-00000012")
DIGEST = "0" * 64
ENTRY = FileEntry(bytes=8, sha256=DIGEST)
RANKS = [f"model-rank{rank:04d}.safetensors" for rank in range(3)]
SHARDED = Manifest(
    kind="full",
    update=12,
    files={
        "state.json": ENTRY,
        "average.safetensors": ENTRY,
        **{name: FileEntry(bytes=8, sha256=DIGEST, rank=rank) for rank, name in enumerate(RANKS)},
    },
    weights={"trained": tuple(RANKS), "average": ("average.safetensors",)},
    slices={
        "rows": (
            Slice(file=RANKS[0], dim=0, offset=0, shape=(3, 4)),
            Slice(file=RANKS[2], dim=0, offset=5, shape=(1, 4)),
            Slice(file=RANKS[1], dim=0, offset=3, shape=(2, 4)),
        ),
        "columns": (
            Slice(file=RANKS[0], dim=1, offset=0, shape=(2, 3)),
            Slice(file=RANKS[1], dim=1, offset=3, shape=(2, 0)),
            Slice(file=RANKS[2], dim=1, offset=3, shape=(2, 1)),
        ),
        "step": (Slice(file=RANKS[0], dim=0, offset=0, shape=()),),
    },
)
WEIGHTS = Manifest(
    kind="weights",
    update=None,
    files={"adapter_config.json": ENTRY, "adapter_model.safetensors": ENTRY},
    weights={"trained": ("adapter_config.json", "adapter_model.safetensors")},
)


def written(manifest):
    value = json.loads(manifest.text())
    del value["sha256"]
    return value


@pytest.mark.parametrize("manifest", [SHARDED, WEIGHTS], ids=["ranks", "adapters"])
def test_all_of_it_comes_back(tmp_path, manifest):
    (tmp_path / MANIFEST).write_text(manifest.text())
    assert read_manifest(tmp_path) == manifest
    assert parse(signed(written(manifest)), FOLDER) == manifest


def test_it_is_written_down_as_is_documented():
    assert written(WEIGHTS) == {
        "format": 2,
        "kind": "weights",
        "update": None,
        "files": {name: {"bytes": 8, "sha256": DIGEST} for name in WEIGHTS.files},
        "weights": {"trained": ["adapter_config.json", "adapter_model.safetensors"]},
    }
    sharded = written(SHARDED)
    assert sharded["files"][RANKS[2]] == {"bytes": 8, "sha256": DIGEST, "rank": 2}
    assert sharded["slices"]["rows"][1] == {"file": RANKS[2], "dim": 0, "offset": 5, "shape": [1, 4]}


def test_format_1_is_a_full_checkpoint():
    files = {name: {"bytes": 8, "sha256": DIGEST} for name in ("model.safetensors", "state.json")}
    assert parse(signed({"format": 1, "update": 12, "files": files}), FOLDER) == Manifest(
        kind="full",
        update=12,
        files={"model.safetensors": ENTRY, "state.json": ENTRY},
        weights={"trained": ("model.safetensors",)},
    )


@pytest.mark.parametrize("form", [3, 99, 0, None, True, 2.0, "2", [2]])
def test_another_format_is_said_not_called_damage(form):
    with pytest.raises(CheckpointError, match="update-00000012 is of format") as error:
        parse(signed({**written(SHARDED), "format": form}), FOLDER)
    assert "the version of shoestring that wrote it" in error.value.hint


HUGE = 2**63
NESTED = json.loads("[" * 500 + "]" * 500)


def sets(place, value):
    """A change of what stands at `place`."""

    def change(manifest):
        for key in place[:-1]:
            manifest = manifest[key]
        manifest[place[-1]] = value

    return change


def drops(*place):
    def change(manifest):
        for key in place[:-1]:
            manifest = manifest[key]
        del manifest[place[-1]]

    return change


def named(name, **entry):
    return sets(("files", name), {"bytes": 8, "sha256": DIGEST, **entry})


ROWS = ("slices", "rows")
HOSTILE = {
    "kind": (sets(("kind",), "half"), "kind is 'half'"),
    "kind, a list": (sets(("kind",), ["full"]), "kind is"),
    "no kind": (drops("kind"), "has no kind"),
    "no update": (drops("update"), "has no update"),
    "update of nothing": (sets(("update",), None), "update is missing"),
    "update -1": (sets(("update",), -1), "update is -1"),
    "update true": (sets(("update",), True), "update is True"),
    "update 1.0": (sets(("update",), 1.0), "update is 1.0"),
    "more keys": (sets(("code",), "import os"), "'code', which is not of this format"),
    "files, a list": (sets(("files",), []), "files is no object"),
    "no state": (drops("files", "state.json"), "files has no state.json"),
    "a file, a list": (sets(("files", "state.json"), []), "'state.json' is no object"),
    "bytes missing": (drops("files", "state.json", "bytes"), "'state.json' has no bytes"),
    "bytes negative": (named("state.json", bytes=-1), "bytes is -1"),
    "bytes endless": (named("state.json", bytes=HUGE), "bytes is 9223372036854775808"),
    "bytes true": (named("state.json", bytes=True), "bytes is True"),
    "digest short": (named("state.json", sha256="0"), "no digest"),
    "digest, a number": (named("state.json", sha256=0), "no digest"),
    "digest with a line's end": (named("state.json", sha256=DIGEST + "\n"), "no digest"),
    "file with a mode": (named("state.json", mode=777), "'mode', which is not of this format"),
    "rank negative": (named("optimizer.safetensors", rank=-1), "rank is -1"),
    "rank nothing like its name": (named(RANKS[0], rank=1), "is of rank 1"),
    **{
        f"name {name!r}": (named(name), "no file of one is called")
        for name in (
            *("../model.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors", "model.pkl", "", "."),
            *(".model.safetensors.next", "manifest.json", "model-rank3.safetensors", "model-rank00003.safetensors"),
            *("model.safetensors\n", "x" * 65 + ".safetensors", "model-rank\u0661234.safetensors", "a\x00.safetensors"),
        )
    },
    "weights missing": (drops("weights"), "has no weights"),
    "weights, a list": (sets(("weights",), []), "weights is no object"),
    "weights of a strange name": (sets(("weights", "../x"), [RANKS[0]]), "weights has '../x'"),
    "weights of no file": (sets(("weights", "average"), []), "weights has 'average'"),
    "weights, a text": (sets(("weights", "average"), "abc"), "weights 'average' is no list"),
    "weights of another file": (sets(("weights", "average"), ["other.safetensors"]), "which files has not"),
    "weights of a number": (sets(("weights", "average"), [3]), "a file of weights is 3"),
    "weights twice the same file": (sets(("weights", "average"), [RANKS[0]] * 2), "names a file twice"),
    "slices, a list": (sets(("slices",), []), "slices is no object"),
    "slices, an object": (sets(ROWS, {}), "slices of 'rows' is no list"),
    "slices of none": (sets(ROWS, []), "do not fit together"),
    "slices of no name": (sets(("slices", ""), [{}]), "a slice has no dim"),
    "slices without a name": (lambda m: m["slices"].update({"": m["slices"]["rows"]}), "slices has a tensor ''"),
    "slices of an endless name": (
        lambda m: m["slices"].update({"x" * 5000: m["slices"]["rows"]}),
        "slices has a tensor 'xxx",
    ),
    "a slice, a text": (sets((*ROWS, 0), "x"), "a slice is no object"),
    "a slice with more": (sets((*ROWS, 0, "stride"), 2), "'stride', which is not of this format"),
    "a slice in another file": (sets((*ROWS, 0, "file"), "other.safetensors"), "which files has not"),
    "a slice in no file": (sets((*ROWS, 0, "file"), None), "file is None"),
    "two slices in a file": (sets((*ROWS, 0, "file"), RANKS[1]), "names a file twice"),
    "a gap at the start": (sets((*ROWS, 0, "offset"), 1), "leave a gap at 0"),
    "a gap within": (sets((*ROWS, 1, "offset"), 6), "leave a gap at 5"),
    "a slice missing": (drops(*ROWS, 2), "leave a gap at 3"),
    "an overlap": (sets((*ROWS, 0, "shape"), [4, 4]), "overlap at 4"),
    "the same place twice": (sets((*ROWS, 1, "offset"), 3), "overlap at 4"),
    "other widths": (sets((*ROWS, 0, "shape"), [3, 5]), "do not fit together"),
    "other dimensions": (sets((*ROWS, 0, "dim"), 1), "do not fit together"),
    "two of a single number": (
        lambda m: m["slices"]["step"].append({"file": RANKS[1], "dim": 0, "offset": 1, "shape": []}),
        "do not fit together",
    ),
    "dim beyond": (sets((*ROWS, 0, "dim"), 2), "dim is 2"),
    "dim of a single number": (sets(("slices", "step", 0, "dim"), 1), "dim is 1"),
    "dim negative": (sets((*ROWS, 0, "dim"), -1), "dim is -1"),
    "dim true": (sets((*ROWS, 0, "dim"), False), "dim is False"),
    "offset negative": (sets((*ROWS, 0, "offset"), -3), "offset is -3"),
    "offset a text": (sets((*ROWS, 0, "offset"), "0"), "offset is '0'"),
    "offset endless": (sets((*ROWS, 0, "offset"), HUGE), "offset is"),
    "shape negative": (sets((*ROWS, 0, "shape"), [-3, -4]), "shape is -3"),
    "shape of fractions": (sets((*ROWS, 0, "shape"), [3.0, 4]), "shape is 3.0"),
    "shape, a number": (sets((*ROWS, 0, "shape"), 12), "shape is no list"),
    "shape of shapes": (sets((*ROWS, 0, "shape"), [[3], 4]), "shape is [3]"),
    "more numbers than there can be": (sets((*ROWS, 0, "shape"), [2**40, 2**40]), "product of shape"),
    "more in all than there can be": (
        sets(
            ROWS,
            [
                {"file": name, "dim": 0, "offset": number << 62, "shape": [1 << 62]}
                for number, name in enumerate(RANKS[:2])
            ],
        ),
        "the numbers of 'rows'",
    ),
    "more dimensions than there can be": (sets((*ROWS, 0, "shape"), [1] * 65), "65 dimensions"),
    "nesting": (sets((*ROWS, 0, "offset"), NESTED), "offset is [[["),
}


@pytest.mark.parametrize(("change", "why"), HOSTILE.values(), ids=HOSTILE)
def test_what_does_not_hold_together_is_one_finding(change, why):
    manifest = copy.deepcopy(written(SHARDED))
    change(manifest)
    with pytest.raises(Damaged) as damage:
        parse(signed(manifest), FOLDER)
    assert damage.value.file == MANIFEST
    assert damage.value.why.startswith("it does not describe this checkpoint: ")
    assert why in damage.value.why
    assert len(damage.value.why) < 300


def test_weights_without_those_that_were_trained_are_none():
    manifest = written(WEIGHTS)
    manifest["weights"] = {"average": manifest["weights"]["trained"]}
    with pytest.raises(Damaged, match="weights has no 'trained'"):
        parse(signed(manifest), FOLDER)


PLACES = [
    ("kind",), ("update",), ("files",), ("weights",), ("slices",), ("files", "state.json"), ("files", "more"),
    ("files", "state.json", "bytes"), ("files", "state.json", "sha256"), ("files", RANKS[0], "rank"),
    ("weights", "trained"), ("weights", "trained", 0), ROWS, (*ROWS, 0), (*ROWS, 0, "file"), (*ROWS, 0, "dim"),
    (*ROWS, 0, "offset"), (*ROWS, 0, "shape"), (*ROWS, 0, "shape", 0),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(PLACES), value=json_values)
def test_any_json_anywhere_is_a_manifest_or_one_finding(place, value):
    manifest = copy.deepcopy(written(SHARDED))
    sets(place, value)(manifest)
    try:
        found = parse(signed(manifest), FOLDER)
    except Damaged:
        return
    assert parse(json.loads(found.text()), FOLDER) == found


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"sha256": None}, {"sha256": "0" * 64}, {"sha256": []}])
def test_what_is_not_signed_is_not_read(value):
    with pytest.raises(Damaged, match="not those that were written"):
        parse(value, FOLDER)


def test_any_flipped_bit_of_it_is_found(tmp_path):
    text = SHARDED.text().encode()
    for at in range(len(text)):
        for bit in (1, 16):
            flipped = bytearray(text)
            flipped[at] ^= bit
            (tmp_path / MANIFEST).write_bytes(flipped)
            try:
                found = read_manifest(tmp_path)
            except Damaged:
                continue
            assert found == SHARDED  # a space between two of its words is another


def test_what_a_file_differs_in_is_said(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"12345678")
    assert difference(path, ENTRY) == "its bytes are not those that were written"
    path.write_bytes(b"1234")
    assert difference(path, ENTRY) == "it has 4 bytes, 8 were written"
    path.unlink()
    path.symlink_to(tmp_path)
    assert "not a regular file" in difference(path, ENTRY)


def test_what_would_not_be_read_back_is_not_written():
    with pytest.raises(ValueError, match="no file of one is called"):
        Manifest(kind="full", update=1, files={"state.json": ENTRY, "Ema2.safetensors": ENTRY}, weights={})
