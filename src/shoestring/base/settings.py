"""The settings of a run, which do not change the training result beyond rounding."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.units import parse_bytes

Precision = Literal["fp32", "fp16", "bf16"]
Kernel = Literal["for-loop", "foreach", "fused"]
MemoryFormat = Literal["contiguous", "channels_last"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run. None leaves the choice to the plan; the settings of a plan are all chosen."""

    micro_batch: Annotated[
        int | None, "samples per forward and backward pass on a GPU; the effective batch does not change"
    ] = None
    precision: Annotated[Precision | None, "fp32, or automatic mixed precision in fp16 or bf16"] = None
    """In fp16 the loss is scaled, and an update whose gradients overflow is repeated with a smaller scale."""
    checkpointing: Annotated[
        str | None, "activation checkpointing: no, full (every block is recomputed in backward), or a number of blocks"
    ] = None
    optimizer_kernel: Annotated[
        Kernel | None,
        "the implementation of the optimizer step in torch.optim: one tensor at a time, many at once, or one kernel",
    ] = None
    memory_format: Annotated[
        MemoryFormat | None,
        "the order in memory of images and of the weights of 2-d convolutions: contiguous (channels first) or "
        "channels_last, which tensor cores compute with",
    ] = None
    """By default a plan for a GPU with tensor cores in 16 bits has the one that is predicted to be faster. Library
    trainers move their batches themselves and have no such setting."""
    offload: Annotated[
        Literal["no", "optimizer", "parameters"], "what is stored in host memory: optimizer states, or also parameters"
    ] = "no"
    """With `optimizer` the optimizer states are in host memory and the CPU updates them; with `parameters` the
    parameters are there too."""
    streamed_blocks: Annotated[
        int | None,
        "number of blocks whose frozen weights are in host memory and are copied to the GPU ahead of each use; 0: none",
    ] = None
    """For adapters on a model that is larger than the GPU. Every number gives the same bits. The blocks are those of
    activation checkpointing; what is trained stays on the GPU. By default a plan streams as few blocks as make an
    update fit, and none if it fits without."""
    stream_from: Annotated[
        Literal["host", "disk"] | None,
        "where the weights of streamed blocks are: in host memory, or in a file in TMPDIR; by default host, or disk if "
        "host memory is too small for them",
    ] = None
    """With `disk` the host needs no memory for them. The file has no name and takes their bytes until the session ends.
    Copies from it wait for the disk, as far as its pages are not in memory."""
    stream_order: Annotated[
        Literal["microbatch", "block"] | None,
        "what streamed blocks are copied for: microbatch: one microbatch after the other; block: all microbatches of "
        "an update, before the next block is copied",
    ] = None
    """With `block` an update copies each streamed block twice, however many microbatches it has. The inputs of the
    blocks are stored for all of its microbatches. Both give the same bits; where that is not so, such as with dropout,
    it is noticed, and a session uses `microbatch`. It needs `checkpointing=full` and one process."""
    stream_group: Annotated[
        int | None,
        "with stream_order=block, the number of microbatches of an update that use each copy; by default all of them",
    ] = None
    """The groups follow one another, and each copies every streamed block twice. The inputs of the blocks are stored
    for the microbatches of one group, so smaller groups need less memory and more copies. Every number gives the same
    bits. A plan that chooses the order takes the largest groups that fit."""
    gpus: Annotated[
        int | None,
        "processes that train together, each on a GPU of its own: 1, 2, 4, ...; without a GPU they use the CPU",
    ] = None
    """A plan for several GPUs uses all of them or one, whichever is predicted to be faster, and says why. Without a GPU
    the processes share the CPU, the default is 1, and the predicted time is that of one process."""
    logical_shards: Annotated[
        int | None,
        "parts of an update that are summed one by one and added in a fixed order, so that every number of gpus that "
        "divides it gives the same bits: 1, 2, 4, ...; by default that of gpus",
    ] = None
    """Each level of the tree of sums within a GPU takes memory for one more gradient."""
    sharding: Annotated[
        Literal["ddp", "zero1", "zero2", "zero3", "pipeline"] | None,
        "what is sharded over several GPUs: nothing, optimizer states, also gradients, also parameters; or pipeline: "
        "whole blocks",
    ] = None
    """`ddp` shards nothing, `zero1` optimizer states, `zero2` also gradients, `zero3` also parameters. The default is
    `ddp`, or another one that can be trained with if its memory allows faster settings. A recipe's library trainer uses
    `ddp` unless `zero2` or `zero3` is set. With `pipeline` one process has the first blocks on one GPU and the others
    on a second one, which compute different microbatches at the same time. A plan chooses it if the host has too little
    memory to stream the blocks of whole models; otherwise it has to be set."""
    packing: Annotated[
        Literal["auto", "yes", "no"],
        "pack short samples into rows of the largest length, which a microbatch then counts; auto: what the plan "
        "predicts to be faster; only recipes with packed_batch()",
    ] = "auto"
    allocator: Annotated[
        Literal["segments", "expandable"] | None,
        "torch's CUDA allocator with its default segments or with expandable_segments",
    ] = None
    """Expandable segments fragment less. By default a plan for a GPU has them where samples of different lengths would
    leave many blocks that no later one fits."""
    compile: Annotated[
        Literal["no", "yes", "graphs"],
        "yes: compile the model's blocks with torch.compile; graphs: run each microbatch as a CUDA graph",
    ] = "no"
    fp32_modules: Annotated[
        str | None,
        "modules that compute in fp32 in spite of precision=fp16: names separated by commas, with * for any number; by "
        "default those that overflow for the first samples",
    ] = None
    """For example `model.layers.*.mlp.down_proj`. Before a run in fp16 begins, the loss of its first two samples is
    computed. If it overflows, the modules to compute in fp32 are determined, added to this setting and stored in the
    run's plan, or the run is refused."""
    cudnn_benchmark: Annotated[bool, "let cuDNN benchmark its convolution algorithms and use the fastest"] = False
    tf32: Annotated[
        bool, "compute matrix products of fp32 data in TF32, with 10 bits of mantissa instead of 23, where a GPU has it"
    ] = False
    """This is `torch.backends.cuda.matmul.allow_tf32`; it changes the training result. GPUs have it from compute
    capability 8.0 on (GeForce 30, A100). For convolutions PyTorch allows TF32 by default, and so does a run."""
    workers: Annotated[
        int | None,
        "processes that load training data in advance; by default 0 until waiting for data takes 5% of the time",
    ] = None
    stage: Annotated[
        str,
        "copy the recipe's inputs to the local disk (TMPDIR) first and verify them: no, yes (at most half of the "
        "disk limit), or a size limit such as 20GB",
    ] = "no"
    save: Annotated[
        Literal["yes", "none"],
        "whether checkpoints are saved while training; none, for prototypes: a kill loses the session, and only a "
        "session that is paused saves one",
    ] = "yes"
    """The weights, in `best/` and `light/`, are saved in any case."""
    save_every_updates: Annotated[int | None, "save at least every N updates: the most that a kill can lose"] = None
    save_every_seconds: Annotated[
        float | None, "save at least every S seconds; by default 600, or less if saving is cheap"
    ] = None
    save_epochs: Annotated[
        int | None,
        "also save at the end of every N-th epoch, and keep these checkpoints; on a full disk the oldest are deleted",
    ] = None
    """These checkpoints are saved after the epoch's evaluation and kept besides the newest ones, to evaluate, export or
    continue from. A plan counts their disk space."""
    keep_checkpoints: Annotated[
        int | None, "number of verified full checkpoints to keep; auto: 2, or 1 if the disk has no space for more"
    ] = None
    """With 1, the checkpoint before the newest is deleted once the newest is written and verified. If the disk damages
    that one later, the run begins again."""
    keep_light: Annotated[
        int,
        "number of epochs whose weights are kept besides the best and the last; on a full disk the oldest are deleted",
    ] = 0

    light_weights: Annotated[
        Literal["own", "fp16", "bf16"] | None,
        "dtype of the parameters in best/ and light/: their own, or rounded to 16 bits; by default their own, or "
        "fp16 if the disk is too small for that",
    ] = None

    def __post_init__(self) -> None:
        least = {
            "micro_batch": 1,
            "gpus": 1,
            "logical_shards": 1,
            "streamed_blocks": 0,
            "stream_group": 2,
            "workers": 0,
            "save_every_updates": 1,
            "save_every_seconds": 0,
            "save_epochs": 1,
        }
        problems = config.too_small(vars(self), {**least, "keep_checkpoints": 1, "keep_light": 0})
        if self.save == "none" and self.save_epochs is not None:
            problems.append(f"save_epochs={self.save_epochs}: with save=none no checkpoint is saved while training")
        if self.checkpointing not in (None, "no", "full") and not self.checkpointing.isdecimal():
            problems.append(f"checkpointing={self.checkpointing}: expected no, full or a number of blocks")
        if self.cuda_graphs and self.checkpointing not in (None, "no"):
            problems.append(
                f"compile=graphs: checkpointing={self.checkpointing} restores the random state in backward, which a "
                "CUDA graph cannot capture; set checkpointing=no or compile=no"
            )
        if self.cuda_graphs and self.offload != "no":
            problems.append(
                f"compile=graphs: offload={self.offload} moves tensors whose addresses a CUDA graph has recorded"
            )
        problems += self._streaming_problems()
        problems += self._order_problems()
        problems += self._pipeline_problems()
        if self.stage not in ("no", "yes"):
            try:
                parse_bytes(self.stage)
            except ValueError as error:
                problems.append(f"stage={self.stage}: expected no or yes; {error}")
        problems += self._shard_problems()
        if problems:
            raise UsageError("invalid settings", problems=problems)

    def _streaming_problems(self) -> list[str]:
        setting = f"streamed_blocks={self.streamed_blocks}"
        if not self.streamed_blocks:
            return []
        if self.offload == "parameters":
            return [f"{setting}: offload=parameters has the weights of all blocks in host memory; set one of the two"]
        if self.compile != "no":
            return [
                f"{setting}: compile={self.compile} would compile the copies of weights into a block; set "
                "compile=no or streamed_blocks=0"
            ]
        return []

    def _order_problems(self) -> list[str]:
        setting = "stream_order=block"
        if self.stream_order != "block":
            if self.stream_group is None:
                return []
            return [
                f"stream_group={self.stream_group}: without {setting} each microbatch has copies of its own; set "
                f"{setting}, or leave out stream_group"
            ]
        problems = []
        if not self.streamed_blocks:
            problems.append(f"{setting}: no blocks are streamed; set streamed_blocks or stream_order=microbatch")
        if self.checkpointing not in (None, "full"):
            problems.append(
                f"{setting}: with checkpointing={self.checkpointing} the activations of all microbatches of an update "
                "would be stored at once; set checkpointing=full"
            )
        if self.processes > 1 or self.logical_shards not in (None, 1):
            problems.append(
                f"{setting}: several processes and logical shards compute one microbatch after the other; set gpus=1 "
                "and logical_shards=1, or stream_order=microbatch"
            )
        if self.is_pipeline:
            problems.append(
                f"{setting}: with sharding=pipeline two microbatches are on the two GPUs at the same time; set "
                "stream_order=microbatch"
            )
        return problems

    def _pipeline_problems(self) -> list[str]:
        if not self.is_pipeline:
            return []
        problems = []
        if self.gpus not in (None, 2):
            problems.append(f"gpus={self.gpus}: sharding=pipeline divides a model between two GPUs; set gpus=2")
        if self.logical_shards not in (None, 1):
            problems.append(
                f"logical_shards={self.logical_shards}: with sharding=pipeline both GPUs compute each microbatch "
                "together; set logical_shards=1"
            )
        if self.compile != "no":
            problems.append(
                f"compile={self.compile}: with sharding=pipeline a backward runs within the forward of the next "
                "microbatch, which compiled code and CUDA graphs do not contain; set compile=no"
            )
        if self.offload == "parameters":
            problems.append(
                "offload=parameters: with sharding=pipeline the weights are on the two GPUs; set streamed_blocks for "
                "frozen weights in host memory, or offload=optimizer"
            )
        return problems

    def _shard_problems(self) -> list[str]:
        counts = {name: getattr(self, name) for name in ("gpus", "logical_shards")}
        problems = [
            f"{name}={count}: must be 1, 2, 4 or another power of two"
            for name, count in counts.items()
            if count is not None and count > 0 and count.bit_count() != 1
        ]
        if not problems and self.logical_shards and self.logical_shards % self.processes:
            problems.append(
                f"logical_shards={self.logical_shards}: must be a multiple of gpus={self.gpus}, each of which computes "
                "whole logical shards"
            )
        return problems

    @property
    def recomputed(self) -> str:
        """The value of `checkpointing`, or the one that needs the least computation of those that are possible."""
        return self.checkpointing or ("full" if self.stream_order == "block" else "no")

    @property
    def is_pipeline(self) -> bool:
        """Whether one process divides the model between two GPUs."""
        return self.sharding == "pipeline" and self.gpus != 1

    @property
    def processes(self) -> int:
        """The number of processes that train together, each with samples of its own; one has both GPUs of a pipeline.

        Plans of version 0.1.0 do not set it, and use one.
        """
        return 1 if self.is_pipeline else self.gpus or 1

    @property
    def cuda_graphs(self) -> bool:
        """Whether each microbatch is run as a CUDA graph."""
        return self.compile == "graphs"

    def replace(self, **changes: Any) -> "Settings":
        return dataclasses.replace(self, **changes)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def fields(cls) -> dict[str, config.Field]:
        """Return the fields by name. Without a value, the plan or the session chooses one: that is called `auto`."""
        return config.fields(cls, none="auto")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        return cls(**config.read(values, cls.fields(), "settings"))
