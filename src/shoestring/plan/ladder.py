"""What the engine does where memory runs out all the same, in its order (`engine/recovery.py`, `train/room.py`)."""

from shoestring.settings import Settings
from shoestring.trace.record import Facts


def ladder(settings: Settings, facts: Facts) -> list[str]:
    """The steps down from the settings, each kept for the rest of the run; the effective batch never changes."""
    size, least = settings.micro_batch or 1, 2 if facts.batch_norm else 1
    sizes = []
    while size > least:
        size = max(-(-size // 2), least)
        sizes.append(size)
    steps = [f"micro_batch {', '.join(map(str, sizes))}"] if sizes else []
    if facts.blocks and settings.checkpointing != "full":
        steps.append(f"activations of all {facts.blocks} blocks computed again in backward")
    if settings.optimizer_kernel != "for-loop":
        steps.append("in the optimizer's step: one tensor after another")
    return [*steps, "an error that says what takes the memory and what would fit"]
