"""A rehearsal that was made by hand: a script on a T4 that runs out of memory late, or a variant of it."""

import dataclasses
from typing import Any

from shoestring.base.units import GIB, MIB
from shoestring.hardware.targets import find
from shoestring.runs.rehearse.rehearsal import (
    DevicePeak,
    Frame,
    Holder,
    MemoryPoint,
    OutOfMemory,
    PhasePeak,
    Rehearsal,
    RehearsedTime,
)

BACKWARD = Frame(file="./train.py", line=49, function="main", text="loss.backward()")
_CAPACITY = find("kaggle-t4").device.memory_bytes
_STACK = (
    Frame(file="site-packages/torch/autograd/graph.py", line=829, function="_engine_run_backward"),
    Frame(file="site-packages/torch/_tensor.py", line=625, function="backward"),
    BACKWARD,
    Frame(file="./train.py", line=60, function="<module>", text="main()"),
)
_HOLDERS = (
    Holder(bytes=6 * GIB, count=402, kind="other", frame=Frame(file="./model.py", line=31, function="forward")),
    Holder(bytes=3 * GIB, count=148, kind="optimizer states", frame=dataclasses.replace(BACKWARD, line=50)),
    *(
        Holder(
            bytes=(20 - index) * MIB, count=1, kind="weights", frame=Frame(file="./model.py", line=index, function="f")
        )
        for index in range(1, 12)
    ),
)
_REHEARSAL = Rehearsal(
    script="./train.py",
    command="shoestring rehearse train.py --on kaggle-t4",
    target=find("kaggle-t4"),
    python="3.12",
    torch="2.10.0+cu128",
    stack="kaggle",
    values="auto",
    end="out of memory",
    exit_status=1,
    updates=160,
    total_updates=1_000,
    total_source="transformers.Trainer",
    devices=(
        DevicePeak(
            index=0,
            peak_allocated_bytes=13 * GIB,
            peak_reserved_bytes=int(13.9 * GIB),
            outside_bytes=141 * MIB,
            capacity_bytes=_CAPACITY,
        ),
    ),
    phases=(
        PhasePeak(name="loading", peak_allocated_bytes=2 * GIB, peak_reserved_bytes=2 * GIB),
        PhasePeak(name="training", peak_allocated_bytes=13 * GIB, peak_reserved_bytes=int(13.9 * GIB), seconds=192.0),
    ),
    out_of_memory=OutOfMemory(
        device=0,
        update=161,
        phase="training",
        requested_bytes=512 * MIB,
        allocated_bytes=13 * GIB,
        reserved_bytes=int(13.9 * GIB),
        free_bytes=300 * MIB,
        stack=_STACK,
        own_frame=BACKWARD,
    ),
    holders=_HOLDERS,
    timeline=tuple(
        MemoryPoint(
            device=0,
            update=update,
            phase="training" if update else "loading",
            allocated_bytes=(2 + step * (3 + update % 40 / 8)) * GIB if update else step * GIB,
            reserved_bytes=(10 if update else 2) * GIB,
        )
        for update in range(162)
        for step in (0, 1)
    ),
    time=RehearsedTime(
        update_seconds=1.2, low_seconds=0.9, high_seconds=1.6, parts=(("training", 1.0), ("evaluation", 0.2))
    ),
    session_seconds=12 * 3600,
    host_peak_bytes=3 * GIB,
    disk_bytes=500 * MIB,
    assumed=("results of large tensors were not computed (mm, native_layer_norm)",),
    proposals=("activation checkpointing", "a microbatch of half the size"),
    notes=("a note",),
    seconds=95.0,
)


def rehearsed(**changes: Any) -> Rehearsal:
    """Return the rehearsal with other values of fields."""
    return dataclasses.replace(_REHEARSAL, **changes)


def finished(**changes: Any) -> Rehearsal:
    """Return one that came to its end."""
    fits: dict[str, Any] = {"end": "finished", "out_of_memory": None, "holders": (), "proposals": (), "exit_status": 0}
    return rehearsed(**{**fits, "updates": 1_000, **changes})
