"""Manifests round-trip, and an inconsistent manifest gives one error about the manifest."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.checkpoint.manifest import (
    MANIFEST,
    DamagedFileError,
    FileEntry,
    Manifest,
    Slice,
    add_digest,
    describe_difference,
    parse,
    read_manifest,
)
from tests.training.checkpoint.test_hostile import json_values

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
    run=RunIdentity(id="a" * 32, recipe="legal", options={"seed": 0}),
)


def content(manifest):
    value = json.loads(manifest.text())
    del value["sha256"]
    return value


@pytest.mark.parametrize("manifest", [SHARDED, WEIGHTS], ids=["ranks", "adapters"])
def test_manifest_round_trips(tmp_path, manifest):
    (tmp_path / MANIFEST).write_text(manifest.text())
    assert read_manifest(tmp_path) == manifest
    assert parse(add_digest(content(manifest)), FOLDER) == manifest


def test_manifest_is_written_as_documented():
    assert content(WEIGHTS) == {
        "format": 3,
        "kind": "weights",
        "update": None,
        "run": {"id": "a" * 32, "recipe": "legal", "options": {"seed": 0}},
        "files": {name: {"bytes": 8, "sha256": DIGEST} for name in WEIGHTS.files},
        "weights": {"trained": ["adapter_config.json", "adapter_model.safetensors"]},
    }
    sharded = content(SHARDED)
    assert sharded["files"][RANKS[2]] == {"bytes": 8, "sha256": DIGEST, "rank": 2}
    assert sharded["slices"]["rows"][1] == {"file": RANKS[2], "dim": 0, "offset": 5, "shape": [1, 4]}


def test_format_1_is_a_full_checkpoint():
    files = {name: {"bytes": 8, "sha256": DIGEST} for name in ("model.safetensors", "state.json")}
    assert parse(add_digest({"format": 1, "update": 12, "files": files}), FOLDER) == Manifest(
        kind="full",
        update=12,
        files={"model.safetensors": ENTRY, "state.json": ENTRY},
        weights={"trained": ("model.safetensors",)},
    )


def test_format_2_names_no_run():
    value = {**content(SHARDED), "format": 2}
    assert parse(add_digest(value), FOLDER) == SHARDED
    with pytest.raises(DamagedFileError, match="'run', which is not a key"):
        parse(add_digest({**content(WEIGHTS), "format": 2}), FOLDER)


@pytest.mark.parametrize(
    "run",
    [
        *(None, "a" * 32, {}, {"recipe": "temporal"}, {"id": "a" * 32, "options": []}, {"id": "a" * 32, "recipe": 1}),
        *({"id": value} for value in (1, "a", "a" * 31, "a" * 33, "A" * 32, "g" * 32)),
        {"id": "a" * 32, "name": "of a key that no version has written"},
    ],
)
def test_damaged_name_of_a_run_is_damage(run):
    with pytest.raises(DamagedFileError, match="the run"):
        parse(add_digest({**content(WEIGHTS), "run": run}), FOLDER)


@pytest.mark.parametrize("file_format", [4, 99, 0, None, True, 2.0, "2", [2]])
def test_unknown_format_is_not_reported_as_damage(file_format):
    with pytest.raises(CheckpointError, match="update-00000012 has format") as error:
        parse(add_digest({**content(SHARDED), "format": file_format}), FOLDER)
    assert "the version of shoestring that wrote it" in error.value.hint


HUGE = 2**63
NESTED = json.loads("[" * 500 + "]" * 500)


def sets(path, value):
    """Return a function that sets the value at `path` in a manifest."""

    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


def drops(*path):
    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        del manifest[path[-1]]

    return change


def adds_file(name, **entry):
    return sets(("files", name), {"bytes": 8, "sha256": DIGEST, **entry})


ROWS = ("slices", "rows")
HOSTILE = {
    "kind": (sets(("kind",), "half"), "kind is 'half'"),
    "kind, a list": (sets(("kind",), ["full"]), "kind is"),
    "no kind": (drops("kind"), "has no kind"),
    "no update": (drops("update"), "has no update"),
    "update none": (sets(("update",), None), "update is missing"),
    "update -1": (sets(("update",), -1), "update is -1"),
    "update true": (sets(("update",), True), "update is True"),
    "update 1.0": (sets(("update",), 1.0), "update is 1.0"),
    "more keys": (sets(("code",), "import os"), "'code', which is not a key of this format"),
    "files, a list": (sets(("files",), []), "files is not an object"),
    "no state": (drops("files", "state.json"), "files has no state.json"),
    "a file, a list": (sets(("files", "state.json"), []), "'state.json' is not an object"),
    "bytes missing": (drops("files", "state.json", "bytes"), "'state.json' has no bytes"),
    "bytes negative": (adds_file("state.json", bytes=-1), "bytes is -1"),
    "bytes endless": (adds_file("state.json", bytes=HUGE), "bytes is 9223372036854775808"),
    "bytes true": (adds_file("state.json", bytes=True), "bytes is True"),
    "digest short": (adds_file("state.json", sha256="0"), "not a SHA-256 digest"),
    "digest, a number": (adds_file("state.json", sha256=0), "not a SHA-256 digest"),
    "digest with a line's end": (adds_file("state.json", sha256=DIGEST + "\n"), "not a SHA-256 digest"),
    "file with a mode": (adds_file("state.json", mode=777), "'mode', which is not a key of this format"),
    "rank negative": (adds_file("optimizer.safetensors", rank=-1), "rank is -1"),
    "rank not of its name": (adds_file(RANKS[0], rank=1), "has rank 1"),
    **{
        f"name {name!r}": (adds_file(name), "is not a valid file name")
        for name in (
            *("../model.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors", "model.pkl", "", "."),
            *(".model.safetensors.next", "manifest.json", "model-rank3.safetensors", "model-rank00003.safetensors"),
            *("model.safetensors\n", "x" * 65 + ".safetensors", "model-rank\u0661234.safetensors", "a\x00.safetensors"),
        )
    },
    "weights missing": (drops("weights"), "has no weights"),
    "weights, a list": (sets(("weights",), []), "weights is not an object"),
    "weights of a strange name": (sets(("weights", "../x"), [RANKS[0]]), "weights has '../x'"),
    "weights of no file": (sets(("weights", "average"), []), "weights has 'average'"),
    "weights, a text": (sets(("weights", "average"), "abc"), "weights 'average' is not a list"),
    "weights of another file": (sets(("weights", "average"), ["other.safetensors"]), "which is not in files"),
    "weights of a number": (sets(("weights", "average"), [3]), "a file of weights is 3"),
    "weights twice the same file": (sets(("weights", "average"), [RANKS[0]] * 2), "names a file twice"),
    "slices, a list": (sets(("slices",), []), "slices is not an object"),
    "slices, an object": (sets(ROWS, {}), "slices of 'rows' is not a list"),
    "slices of none": (sets(ROWS, []), "do not fit together"),
    "slices of no name": (sets(("slices", ""), [{}]), "a slice has no dim"),
    "slices without a name": (
        lambda m: m["slices"].update({"": m["slices"]["rows"]}),
        "slices has '', which is not a valid tensor name",
    ),
    "slices of an endless name": (
        lambda m: m["slices"].update({"x" * 5000: m["slices"]["rows"]}),
        "slices has 'xxx",
    ),
    "a slice, a text": (sets((*ROWS, 0), "x"), "a slice is not an object"),
    "a slice with more": (sets((*ROWS, 0, "stride"), 2), "'stride', which is not a key of this format"),
    "a slice in another file": (sets((*ROWS, 0, "file"), "other.safetensors"), "which is not in files"),
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
    "shape, a number": (sets((*ROWS, 0, "shape"), 12), "shape is not a list"),
    "shape of shapes": (sets((*ROWS, 0, "shape"), [[3], 4]), "shape is [3]"),
    "more numbers than there can be": (sets((*ROWS, 0, "shape"), [2**40, 2**40]), "product of shape"),
    "more in total than there can be": (
        sets(
            ROWS,
            [
                {"file": name, "dim": 0, "offset": number << 62, "shape": [1 << 62]}
                for number, name in enumerate(RANKS[:2])
            ],
        ),
        "the number of elements of 'rows'",
    ),
    "more dimensions than there can be": (sets((*ROWS, 0, "shape"), [1] * 65), "65 dimensions"),
    "nesting": (sets((*ROWS, 0, "offset"), NESTED), "offset is [[["),
}


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_inconsistent_manifest_is_rejected(change, reason):
    manifest = copy.deepcopy(content(SHARDED))
    change(manifest)
    with pytest.raises(DamagedFileError) as damage:
        parse(add_digest(manifest), FOLDER)
    assert damage.value.file == MANIFEST
    assert damage.value.reason.startswith("it does not describe this checkpoint: ")
    assert reason in damage.value.reason
    assert len(damage.value.reason) < 300


def test_weights_without_trained_set_are_rejected():
    manifest = content(WEIGHTS)
    manifest["weights"] = {"average": manifest["weights"]["trained"]}
    with pytest.raises(DamagedFileError, match="weights has no 'trained'"):
        parse(add_digest(manifest), FOLDER)


PATHS = [
    ("kind",), ("update",), ("files",), ("weights",), ("slices",), ("files", "state.json"), ("files", "more"),
    ("files", "state.json", "bytes"), ("files", "state.json", "sha256"), ("files", RANKS[0], "rank"),
    ("weights", "trained"), ("weights", "trained", 0), ROWS, (*ROWS, 0), (*ROWS, 0, "file"), (*ROWS, 0, "dim"),
    (*ROWS, 0, "offset"), (*ROWS, 0, "shape"), (*ROWS, 0, "shape", 0),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), value=json_values)
def test_arbitrary_json_value_is_accepted_or_rejected(path, value):
    manifest = copy.deepcopy(content(SHARDED))
    sets(path, value)(manifest)
    try:
        parsed = parse(add_digest(manifest), FOLDER)
    except DamagedFileError:
        return
    assert parse(json.loads(parsed.text()), FOLDER) == parsed


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"sha256": None}, {"sha256": "0" * 64}, {"sha256": []}])
def test_manifest_without_valid_digest_is_rejected(value):
    with pytest.raises(DamagedFileError, match="digest does not match"):
        parse(value, FOLDER)


def test_flipped_bit_is_detected(tmp_path):
    text = SHARDED.text().encode()
    for position in range(len(text)):
        for bit in (1, 16):
            flipped = bytearray(text)
            flipped[position] ^= bit
            (tmp_path / MANIFEST).write_bytes(flipped)
            try:
                manifest = read_manifest(tmp_path)
            except DamagedFileError:
                continue
            assert manifest == SHARDED  # only the whitespace differs


def test_difference_of_a_file_is_described(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"12345678")
    assert describe_difference(path, ENTRY) == "its SHA-256 digest does not match the manifest"
    path.write_bytes(b"1234")
    assert describe_difference(path, ENTRY) == "it has 4 bytes, but 8 were written"
    path.unlink()
    path.symlink_to(tmp_path)
    assert "not a regular file" in describe_difference(path, ENTRY)


def test_invalid_manifest_cannot_be_created():
    with pytest.raises(ValueError, match="is not a valid file name"):
        Manifest(kind="full", update=1, files={"state.json": ENTRY, "ema 2.safetensors": ENTRY}, weights={})
