"""Files of recorded operators: what is read, what is left out, and what is refused."""

import struct
from pathlib import Path

import pytest

from shoestring.base.errors import RunError
from shoestring.planning.simulator.recorded import (
    BACKWARD,
    EVALUATION,
    TRAINING,
    PhaseTotal,
    RecordedList,
    RecordedTensor,
    Unit,
    read_folder,
    read_operators,
)
from tests.planning.simulator.records import Writer, tensor


def small() -> Writer:
    """Return an update of one product, forward and backward."""
    writer = Writer()
    product = writer.operator("aten::mm", ["self", "mat2"])
    signature = writer.signature(product, [tensor(4, 5), tensor(5, 6)], [tensor(4, 6)])
    forward = writer.call(signature, views=3)
    backward = writer.call(signature, step=BACKWARD, is_other_thread=True)
    writer.unit([writer.segment([forward, backward])], weight=9, update=2)
    writer.totals(TRAINING, 9, 9, 18, 18)
    return writer


def test_reads_what_refers_to_each_other(tmp_path: Path) -> None:
    recorded = read_operators(small().write(tmp_path))
    assert recorded is not None
    assert (recorded.process, recorded.is_full) == (77, False)
    assert recorded.units == (Unit(TRAINING, 2, 9, (0,)),)
    forward, backward = recorded.calls_of(0)
    assert (forward.views, forward.step, forward.is_other_thread) == (3, 0, False)
    assert (backward.step, backward.is_other_thread) == (BACKWARD, True)
    signature = recorded.signatures[forward.signature]
    assert signature.operator.name == "aten::mm"
    assert signature.argument("mat2") == RecordedTensor("Float", (5, 6))
    assert signature.argument("absent") is None
    assert recorded.totals[TRAINING] == PhaseTotal(9, 9, 18, 18)


def test_values_of_all_kinds(tmp_path: Path) -> None:
    writer = Writer()
    operator = writer.operator("aten::some", ["a"] * 8, written=[0])
    image = ["Half", [2, 3, 4, 4], [48, 1, 12, 3]]
    host = ["Long", [7], None, "cpu"]
    tensors = {"list": [[tensor(2), 3], [None, 1]], "tensors": 5, "bytes": 100}
    writer.signature(operator, [image, host, tensors, {"ints": [1, -2]}, {"bools": [1, 0, 1]}, True, 12, None], [None])
    recorded = read_operators(writer.write(tmp_path))
    assert recorded is not None
    assert recorded.signatures[0].arguments == (
        RecordedTensor("Half", (2, 3, 4, 4), (48, 1, 12, 3)),
        RecordedTensor("Long", (7,), on_gpu=False),
        RecordedList(((RecordedTensor("Float", (2,)), 3), (None, 1)), 100),
        (1, -2),
        (1, 0, 1),
        True,
        12,
        None,
    )
    image_bytes, host_bytes, list_bytes = (
        value.bytes
        for value in recorded.signatures[0].arguments[:3]
        if isinstance(value, RecordedTensor | RecordedList)
    )
    assert (image_bytes, host_bytes, list_bytes) == (2 * 3 * 16 * 2, 0, 3 * 2 * 4 + 100)


@pytest.mark.parametrize("lost", [1, 4, 12, 20])
def test_incomplete_last_record_is_ignored(tmp_path: Path, lost: int) -> None:
    path = small().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-lost])
    recorded = read_operators(path)
    assert recorded is not None
    assert not recorded.units
    assert len(recorded.calls) == 2


def test_unit_that_was_never_counted_is_left_out(tmp_path: Path) -> None:
    writer = small()
    writer.unit([0], weight=0, update=3)
    recorded = read_operators(writer.write(tmp_path))
    assert recorded is not None
    assert [unit.update for unit in recorded.units] == [2]


def test_process_that_ended_before_the_header_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "operators.5").write_bytes(bytes(36864))
    (tmp_path / "operators.6").write_bytes(b"")
    assert read_folder(tmp_path) == ()


def test_folder_has_a_record_for_each_process_and_other_files(tmp_path: Path) -> None:
    for process in (12, 9):
        writer = small()
        struct.pack_into("<I", writer.content, 12, process)
        writer.write(tmp_path, process)
    (tmp_path / "operators.notes").write_text("other")
    assert [record.process for record in read_folder(tmp_path)] == [9, 12]


def test_phases_are_told_apart(tmp_path: Path) -> None:
    writer = small()
    writer.unit([0], phase=EVALUATION, weight=2)
    recorded = read_operators(writer.write(tmp_path))
    assert recorded is not None
    assert [len(recorded.units_of(phase)) for phase in (TRAINING, EVALUATION)] == [1, 1]


def broken_magic(writer: Writer) -> None:
    writer.content[0:4] = b"ELF "


def newer_version(writer: Writer) -> None:
    struct.pack_into("<I", writer.content, 8, 2)


def missing_signature(writer: Writer) -> None:
    writer.call(50)


def missing_call(writer: Writer) -> None:
    writer.segment([0, 7])


def unknown_kind(writer: Writer) -> None:
    writer.record(9, b"")


def no_json(writer: Writer) -> None:
    writer.record(1, b"{")


def unknown_value(writer: Writer) -> None:
    writer.signature(0, ["text"])


def unknown_step(writer: Writer) -> None:
    writer.call(0, step=9)


def many_weights(writer: Writer) -> None:
    struct.pack_into("<I", writer.content, 20, 2**31)


@pytest.mark.parametrize(
    "damage",
    [
        broken_magic,
        newer_version,
        missing_signature,
        missing_call,
        unknown_kind,
        no_json,
        unknown_value,
        unknown_step,
        many_weights,
    ],
)
def test_damaged_file_is_refused_by_name(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    writer = small()
    damage(writer)
    path = writer.write(tmp_path)
    with pytest.raises(RunError, match=r"operators\.77"):
        read_operators(path)
