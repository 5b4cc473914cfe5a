"""Streamed blocks of transformers' models train to the bits of resident ones: with caches of keys and values, towers of
images, experts stacked in one weight, encoders that every block of a decoder reads, conditions of a diffusion model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing
from shoestring.techniques.streaming import placement
from shoestring.techniques.streaming.block_order import BlockOrder
from shoestring.techniques.streaming.stream import stream_of
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import add_gradients
from tests.techniques.streaming.test_stream import CPU, Adapted, assert_same

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft reads it
]

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 60,
}
IMAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 8}


def tokens() -> Tensor:
    return torch.randint(3, 50, (2, 9))


def llama() -> tuple[Any, Any]:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)), lambda: {"input_ids": tokens()}


def mixture() -> tuple[Any, Any]:
    config = transformers.MixtralConfig(**TEXT, num_local_experts=4, output_router_logits=True)
    return transformers.MixtralForCausalLM(config), lambda: {"input_ids": tokens()}


def images_and_text() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE, patch_size=4),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=59,
        image_seq_length=4,
    )

    def inputs() -> dict[str, Tensor]:
        ids = torch.cat([torch.full((2, 4), 59), tokens()], dim=1)
        return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 8, 8)}

    return transformers.LlavaForConditionalGeneration(config), inputs


def encoder_and_decoder() -> tuple[Any, Any]:
    config = transformers.T5Config(
        d_model=32, d_kv=16, d_ff=48, num_layers=3, num_heads=2, vocab_size=60, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), lambda: {"input_ids": tokens()}


class Conditioned(nn.Module):
    """A block of a diffusion transformer, with a parameter of its own and a condition that all blocks read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 16), requires_grad=False)
        self.condition, self.layer = nn.Linear(16, 32).requires_grad_(False), Adapted(16)
        self.norm = nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, values: Tensor, *, condition: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = (self.table[:, None] + self.condition(condition).unflatten(-1, (2, 16)).movedim(-2, 0)).unbind()
        return values + self.layer(self.norm(values) * scale + shift), condition


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.blocks = nn.Linear(1, 16), nn.ModuleList(Conditioned() for _ in range(5))

    def forward(self, values: Tensor, time: Tensor, labels: Tensor) -> Any:
        condition = self.time(time)
        for block in self.blocks:
            values, condition = block(values, condition=condition)
        return transformers.utils.ModelOutput(loss=(values - labels).square().mean())


def diffusion() -> tuple[Any, Any]:
    return Diffusion(), lambda: {
        "values": torch.randn(3, 16),
        "time": torch.rand(3, 1),
        "labels": torch.randn(3, 16),
    }


def adapted(make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the model with adapters, or with those of its own, and what makes its inputs."""
    torch.manual_seed(0)
    model, inputs = make()
    if make is not diffusion:
        model.requires_grad_(False)
        peft = pytest.importorskip("peft")
        targets = "q" if make is encoder_and_decoder else "q_proj"
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[targets], init_lora_weights=False))
    model.train()
    return model, inputs


def train(make: Callable[[], tuple[Any, Any]], count: int, setting: str, dtype: torch.dtype) -> list[Tensor]:
    model, inputs = adapted(make)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.data = parameter.data.to(dtype)
    placement.move(model, object(), Settings(streamed_blocks=count), CPU)
    checkpointing.apply(model, object(), setting)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=0.01), []
    for _ in range(2):
        batch = inputs()
        if "labels" not in batch:
            batch["labels"] = batch["input_ids"]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if count:
        stream = stream_of(model)
        assert stream and stream.copies <= 2 * 2 * count + 2  # no block is copied twice in a pass
    return [*losses, *trained]


def gradients(make: Callable[[], tuple[Any, Any]], count: int, dtype: torch.dtype, *, by_block: bool) -> list[Tensor]:
    """Return the loss and the gradients of three microbatches, without dropout."""
    model, inputs = adapted(make)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    placement.move(model, object(), Settings(streamed_blocks=count), CPU)
    checkpointing.apply(model, object(), "full")
    stream = stream_of(model)
    batches = [inputs() for _ in range(3)]
    for batch in batches:
        batch.setdefault("labels", batch.get("input_ids"))
    total = add_gradients(
        model,
        lambda model, batch: model(**batch).loss,
        [(batch, 2) for batch in batches],
        samples=6,
        mixed_precision=mixed_precision("bf16" if dtype == torch.bfloat16 else "fp32", CPU),
        run_all=BlockOrder(stream).run if by_block and stream else None,
    )
    assert total
    if by_block and stream:
        assert stream.copies == 2 * count - 2  # each block once in forward and in backward, for all microbatches
    return [total.loss_sum, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "counts"),
    [(llama, (2, 4)), (images_and_text, (2, 7)), (encoder_and_decoder, (2, 6)), (diffusion, (2, 5))],
)
def test_same_bits_of_each_block_for_all_microbatches(
    make: Callable[[], tuple[Any, Any]], counts: tuple[int, int], dtype: torch.dtype
) -> None:
    """A mixture of experts is not among them: its loss uses values from the inside of blocks."""
    expected = gradients(make, 0, dtype, by_block=False)
    for count in counts:
        assert_same(gradients(make, count, dtype, by_block=True), expected)


@pytest.mark.parametrize("setting", ["no", "full"])
@pytest.mark.parametrize("make", [llama, mixture, images_and_text, encoder_and_decoder, diffusion])
def test_same_bits_as_resident_blocks(make: Callable[[], tuple[Any, Any]], setting: str) -> None:
    dtype = torch.bfloat16 if make in (llama, mixture) else torch.float32
    count = {llama: 4, mixture: 3, images_and_text: 7, encoder_and_decoder: 6, diffusion: 5}[make]
    assert_same(train(make, count, setting, dtype), train(make, 0, setting, dtype))
