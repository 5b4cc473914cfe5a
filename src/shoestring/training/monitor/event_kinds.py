"""The kinds of events in a run's `events.jsonl`, with the fields of each and their meaning.

What is emitted has the fields of this table and no others: `tests/docs/test_reference.py` compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class EventKind:
    """A kind of event."""

    meaning: str
    """When it is recorded."""
    fields: Mapping[str, str]
    """The meaning of each field, by name."""
    optional: frozenset[str] = field(default_factory=frozenset)
    """The fields that an event of this kind may lack."""


EVERY: Mapping[str, str] = {
    "time": "when the event was recorded, in unix seconds",
    "session": "the number of the session, from 1",
    "event": "the kind of the event",
    "lost": "only after events that could not be written, for example on a full disk: their number",
    "crc32": "the CRC-32 of the line without this field, as 8 hexadecimal digits",
}
"""The fields of every event. `Events.emit` adds them."""

_UPDATE = "the number of updates completed so far"
_HOST_MEMORY = {
    "host_bytes": "bytes of host memory in use: of the control group whose limit applies, else of the machine",
    "host_limit_bytes": "the limit of that memory",
    "process_bytes": "the resident memory of the process that trains",
}
_MEMORY = {
    **_HOST_MEMORY,
    "oom_kills": "the kernel's count of processes that it ended in the control group for lack of memory; null if it "
    "cannot be read",
    "memory_group": "an identifier of that control group",
}
_STATE_DIGEST = "the SHA-256 of the content of `state.json`"

EVENT_KINDS: Mapping[str, EventKind] = {
    "session": EventKind(
        meaning="A session has loaded the run and begins to train.",
        fields={
            "update": _UPDATE,
            "limit_seconds": "the limit of the session; null without one",
            "startup_seconds": "from the start of the process to this event",
            "target": "the target of `--on`",
            "device": "the name of the device that trains",
            "parameters": "the numbers of the model's parameters: `total` and `trainable`",
            "micro_batch": "the setting of that name",
            "precision": "the setting of that name",
            "processes": "the number of processes that train together",
            "machine": "what was detected of the machine: GPUs, memory, cores, versions of libraries",
            "versions": "the versions of `shoestring`, `python` and `torch`",
            "pid": "the process that trains",
            "run": "the id of the run, from `plan.json`; not in runs of earlier versions",
            **_MEMORY,
        },
    ),
    "memory": EventKind(
        meaning="The first update of a session, which may need more host memory than there is, begins.",
        fields={"update": _UPDATE, "micro_batch": "samples of a microbatch", **_MEMORY},
    ),
    "progress": EventKind(
        meaning="One or more updates were made.",
        fields={
            "update": _UPDATE,
            "epoch": "the epoch of the last update, from 1",
            "updates": "the number of updates that this event counts",
            "samples": "the number of their samples",
            "seconds": "their duration",
            "loss": "the mean of their losses; null if only a library's trainer knows it",
            "learning_rate": "that of the last update",
            "gradient_norm": "the norm of the last update's gradient before clipping; null if it is not computed",
            "memory_bytes": "the peak of the memory that torch has reserved on the GPU; without a GPU the memory of "
            "the process",
            "skipped": "optimizer steps that were skipped because gradients overflowed in fp16",
            **_HOST_MEMORY,
            "waiting_seconds": "the part of `seconds` in which training waited for data",
            "workers": "processes that load data",
            "length": "the sum of the samples' lengths, for a recipe with `length`",
            "padded_length": "the same with padding",
            "gpu_allocated_bytes": "bytes of tensors on the GPU now",
            "gpu_utilisation": "the utilization of the GPU, from 0 to 1; null if it cannot be measured",
            "gpu_watts": "the power of the GPU; null if it cannot be measured",
            "metrics": "of a library's trainer: all numbers that it has logged, by name, such as rewards",
            "ranks": "with several GPUs, for each: `memory_bytes`, `exchange_seconds`, `waiting_seconds` (for slower "
            "GPUs) and `input_seconds` (for data)",
        },
        optional=frozenset(
            {"waiting_seconds", "workers", "length", "padded_length", "gpu_allocated_bytes", "gpu_utilisation"}
            | {"gpu_watts", "metrics", "ranks"}
        ),
    ),
    "evaluation": EventKind(
        meaning="The model was evaluated on a part of the data.",
        fields={
            "update": _UPDATE,
            "epoch": "the epoch that has ended, from 1",
            "part": "`validation` or `test`",
            "metrics": "the values by name: numbers or other JSON",
            "seconds": "the duration",
            "best": "whether the weights are the best so far",
            "evidence": "what the recipe shows besides its metrics: `confusion_matrix`, `histograms`, `samples` and "
            "`examples`, of which images are files in `evidence/`",
        },
        optional=frozenset({"evidence"}),
    ),
    "answers": EventKind(
        meaning="A language model has answered held-out prompts.",
        fields={
            "update": _UPDATE,
            "epoch": "the epoch that has ended; 0 before training",
            "rows": "for each prompt: `prompt`, `answer`, `reference` (null if unknown) and `stopped` (whether the "
            "answer ended by itself; null if unknown)",
            "seconds": "the duration",
            "skipped": "why there are no rows; empty if there are",
        },
    ),
    "save": EventKind(
        meaning="A checkpoint or weights were written.",
        fields={
            "update": _UPDATE,
            "bytes": "bytes of the files",
            "seconds": "the duration",
            "stall_seconds": "the part of it in which training waited",
            "kind": "`full` for a checkpoint; for weights `best`, `light` or `epoch` (`keep_light`)",
        },
    ),
    "unsaved": EventKind(
        meaning="A checkpoint or weights could not be written. Training continues and tries again.",
        fields={"update": _UPDATE, "what": "what was to be written, as `kind` of `save`", "why": "the cause"},
    ),
    "damaged": EventKind(
        meaning="A damaged checkpoint was skipped.",
        fields={"path": "the folder of the checkpoint", "file": "its file that is damaged", "why": "what is wrong"},
    ),
    "note": EventKind(
        meaning="Something that the person should know, as text.",
        fields={"message": "the text", "state_sha256": f"{_STATE_DIGEST}, if it was written after the event `stop`"},
        optional=frozenset({"state_sha256"}),
    ),
    "unseeded": EventKind(
        meaning="The run cannot be repeated bit for bit, because it has random numbers that are not seeded.",
        fields={"update": _UPDATE, "source": "what draws them: `data` or `loss`", "message": "the same, for a person"},
    ),
    "oom": EventKind(
        meaning="Memory was exhausted. Training continues with less.",
        fields={
            "update": _UPDATE,
            "during": "`update`, `optimizer step` or `evaluation`",
            "failure": "the error message, or how the kernel ended the session before",
            "micro_batch": "samples of the microbatch that failed",
            "done": "what was reduced",
            "back_to": "the update of the checkpoint that training goes back to, if it does",
            "restart": "the sizes with which all processes start again, if they have to",
        },
        optional=frozenset({"back_to", "restart"}),
    ),
    "restart": EventKind(
        meaning="All processes of a session with several GPUs start again.",
        fields={
            "update": "the update of the newest checkpoint",
            "reason": "why",
            "number": "how many times this session has restarted because a process was lost; 0 after out-of-memory",
        },
    ),
    "backup": EventKind(
        meaning="A checkpoint was copied to the URL of `--backup`. The event may follow the end of a session.",
        fields={
            "update": "the update of the checkpoint",
            "url": "where it was copied to",
            "bytes": "bytes of the copy",
            "sent_bytes": "bytes of the files that were not there yet",
            "seconds": "the duration",
        },
    ),
    "backup_failed": EventKind(
        meaning="A checkpoint could not be copied. Training continues and it is tried again.",
        fields={"update": "the update of the checkpoint", "url": "where it was to be copied to", "why": "the cause"},
    ),
    "stop": EventKind(
        meaning="A session has ended. A session that was killed has no such event.",
        fields={
            "update": _UPDATE,
            "status": "`finished`, `paused` or `failed`",
            "reason": "why it has ended",
            "updates": "the number of updates of the session",
            "seconds": "the duration of the session",
            "saving_seconds": "the part in which training waited for saves",
            "evaluating_seconds": "the part of evaluations",
            "state_sha256": _STATE_DIGEST,
        },
        optional=frozenset({"updates", "seconds", "saving_seconds", "evaluating_seconds"}),
    ),
}
"""By the name in the field `event`. Who ends a session from outside does not know the optional fields of `stop`."""
