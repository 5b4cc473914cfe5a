"""The simulated beam search allocates the cache of the real one."""

from typing import Any

import pytest
import torch

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free
from shoestring.recipe.finding import load
from shoestring_recipes.vqa import VQA, Options
from shoestring_recipes.vqa.texts import BEGIN
from shoestring_recipes.vqa.tokens import build_text_tokenizer


@pytest.mark.parametrize(("beams", "a_len"), [(3, 40), (1, 2), (2, 1)])
@torch.no_grad()
def test_the_last_cache_is_that_of_generate(beams: int, a_len: int) -> None:
    recipe = VQA(Options(size="tiny", beams=beams, a_len=a_len))
    model: Any = recipe.model().eval()
    batch = recipe.batch(2)
    model.writer.generation_config.eos_token_id = None  # texts of the greatest length
    model.writer.config.eos_token_id = None
    caches: list[Any] = []
    # Of the output: transformers 5.0 does not pass a cache to the writer before it has one.
    hook = model.writer.register_forward_hook(lambda _, __, output: caches.append(output.past_key_values))
    context = model.encode(batch.images, batch.questions, batch.mask)
    model.generate(context, build_text_tokenizer().encode(BEGIN), beams=beams, max_length=a_len)
    expected = [
        (tuple(layer.keys.shape), tuple(layer.values.shape))
        for part in (caches[-1].self_attention_cache, caches[-1].cross_attention_cache)
        for layer in part.layers
    ]
    hook.remove()
    steps = [[tuple(tensor.shape) for tensor in tensors] for tensors, _ in recipe.inference(model, batch)]
    assert list(zip(steps[-1][::2], steps[-1][1::2], strict=True)) == expected
    lengths = [shapes[0][2] for shapes in steps]
    assert lengths == sorted(lengths)
    assert sum(step.times for step in recipe.inference(model, batch)) == len(caches)


@pytest.mark.slow
def test_a_traced_prediction_has_the_cache_of_all_beams() -> None:
    with Tracer(load("vqa", {"size": "tiny", "a_len": 40, "beams": 3})) as tracer:
        trace = tracer.trace_inference(Settings(micro_batch=2, precision="fp32"), find("t4").device)
    live = peak = 0
    for event in trace.events:
        if isinstance(event, Alloc | Free) and trace.storages[event.storage].part == "KV cache":
            live += trace.storages[event.storage].bytes * (1 if isinstance(event, Alloc) else -1)
            peak = max(peak, live)
    # Keys and values of width 32 in fp32, for 40 positions of the text and one of the context.
    final = 2 * 3 * (40 + 1) * 2 * 32 * 4
    assert final <= peak <= 2 * final
