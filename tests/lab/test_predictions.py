"""Predicted memory beside what PyTorch's allocator takes: a selection of `benchmarks.lab.memory.configurations`."""

from benchmarks.lab.memory.configurations import configurations
from benchmarks.lab.memory.predictions import SIDES, collect
from benchmarks.lab.memory.scores import describe, problems

SELECTED = (
    "gpt2 seq_len=512 4 fp16",
    "gpt2 seq_len=512 4 fp16 offload=optimizer",
    "gpt2 seq_len=512 4 fp16 gpus=2 sharding=zero1",
    "vit-base 16 fp16 checkpointing=full offload=parameters gpus=2 sharding=zero3",
    "gpt2 seq_len=512 8 fp16 evaluation",
    "bert-base seq_len=256 lora_r=8 16 fp16",
    "resnet-50 16 fp16",
    "bert-base seq_len=256 lora_r=8 quantization=nf4 weights=fp16 16 fp16",
    "bert-base seq_len=256 lora_r=8 quantization=nf4 weights=fp16 unquantized=own 16 fp16",
    "bert-base seq_len=256 lora_r=8 quantization=nf4 weights=fp16 double_quantization=True 16 fp16 checkpointing=full",
    "t5-small seq_len=256 8 fp16",
)


def test_the_selection_reaches_the_goals(tmp_path):
    items = {item.id: item for item in configurations()}
    scores = list(collect([items[name] for name in SELECTED], tmp_path, SIDES))
    assert not [score.describe() for score in scores if score.skipped]
    assert not list(problems(scores)), describe(scores)
    assert not [score.describe() for score in scores if abs(score.error("loading")) > 0.02]
    # An estimate has placeholders for bitsandbytes' layers, which keep what these keep.
    packed = [score for score in scores if score.kind == "4-bit weights"]
    assert len(packed) == 3 and not [score.describe() for score in packed if abs(score.error("allocated")) > 0.001]
