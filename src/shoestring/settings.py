"""Settings: what may be chosen without changing what is learnt (beyond rounding)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoestring import config
from shoestring.errors import UsageError
from shoestring.units import parse_bytes

Precision = Literal["fp32", "fp16", "bf16"]
Kernel = Literal["for-loop", "foreach", "fused"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`None` leaves the choice to the plan; a plan's own settings have none left open."""

    micro_batch: Annotated[int | None, "samples on the GPU at once; the effective batch stays as it is"] = None
    precision: Annotated[Precision | None, "fp32, or automatic mixed precision in fp16 or bf16"] = None
    checkpointing: Annotated[
        str | None, "blocks whose activations are computed again in backward: no, full (every block), or how many"
    ] = None
    optimizer_kernel: Annotated[
        Kernel | None, "an optimizer's step for one tensor after another, for many at once, or in one kernel"
    ] = None
    offload: Annotated[
        Literal["no", "optimizer", "parameters"], "what is kept in host memory: the optimizer's states, or weights too"
    ] = "no"
    sharding: Annotated[
        Literal["ddp", "zero1", "zero2", "zero3"],
        "what several GPUs divide: nothing, the optimizer's states, gradients as well, weights as well",
    ] = "ddp"
    allocator: Annotated[
        Literal["segments", "expandable"], "torch's CUDA allocator as it comes, or with expandable_segments"
    ] = "segments"
    compile: Annotated[
        Literal["no", "yes", "graphs"],
        "yes: have torch compile the model's blocks; graphs: ask a GPU for all kernels of a microbatch at once",
    ] = "no"
    cudnn_benchmark: Annotated[bool, "let cuDNN try its convolution algorithms and take the fastest"] = False
    workers: Annotated[
        int | None, "processes that fetch the training data ahead; by default none until waiting for it costs 5%"
    ] = None
    stage: Annotated[
        str,
        "copy the recipe's inputs to the local disk first, verified (TMPDIR says where): no, yes (at most half of the "
        "disk's limit), or at most so much, as 20GB",
    ] = "no"
    save_every_updates: Annotated[int | None, "updates that a kill may cost at most, besides the seconds"] = None
    save_every_seconds: Annotated[
        float | None, "seconds of training that a kill may cost at most; by default 600, less where saving costs little"
    ] = None
    keep_checkpoints: Annotated[int, "verified full checkpoints to keep, at least 2"] = 2
    keep_light: Annotated[
        int, "epochs whose weights are kept besides the best and the last ones; on a full disk the oldest go first"
    ] = 0

    light_weights: Annotated[
        Literal["own", "fp16", "bf16"], "parameters in best/ and light/: as they are, or rounded to half the bytes"
    ] = "own"

    def __post_init__(self) -> None:
        least = {"micro_batch": 1, "workers": 0, "save_every_updates": 1, "save_every_seconds": 0}
        problems = config.too_small(vars(self), {**least, "keep_checkpoints": 2, "keep_light": 0})
        if self.checkpointing not in (None, "no", "full") and not self.checkpointing.isdecimal():
            problems.append(f"checkpointing={self.checkpointing}: expected no, full or a number of blocks")
        if self.cuda_graphs and self.checkpointing not in (None, "no"):
            problems.append(
                f"compile=graphs: checkpointing={self.checkpointing} asks for the state of random numbers in backward, "
                "which cannot be captured; checkpointing=no, or compile=no"
            )
        if self.cuda_graphs and self.offload != "no":
            problems.append(f"compile=graphs: offload={self.offload} moves what a graph expects in its place")
        if self.stage not in ("no", "yes"):
            try:
                parse_bytes(self.stage)
            except ValueError as error:
                problems.append(f"stage={self.stage}: expected no or yes; {error}")
        if problems:
            raise UsageError("settings cannot be used", problems=problems)

    @property
    def cuda_graphs(self) -> bool:
        """Whether a GPU is asked for a microbatch's kernels at once."""
        return self.compile == "graphs"

    def replace(self, **changes: Any) -> "Settings":
        return dataclasses.replace(self, **changes)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        return cls(**config.read(values, config.fields(cls), "settings"))
