"""What loading has in host memory, by hand for a small model, and beside the tensors that the process really has."""

import pytest
import torch

from shoestring.base.settings import Settings
from shoestring.planning.trace import host_memory
from shoestring.recipe import finding
from shoestring.techniques import adapt, deferred_casts
from shoestring.techniques.pipeline import placement

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
LAYERS, HIDDEN, INTERMEDIATE, ROWS = 3, 64, 96, 400
EMBEDDING = ROWS * HIDDEN
BLOCK = 4 * HIDDEN**2 + 3 * HIDDEN * INTERMEDIATE
NORMS = (2 * LAYERS + 1) * HIDDEN
ADAPTERS = 4 * LAYERS * 2 * (2 * 2 * HIDDEN)
"""Bytes of adapters of rank 2 in fp32, beside two layers of each block."""


class Mine:
    """A model in bf16, as in its files."""

    epochs = 1
    effective_batch = 2
    keeps_stored_type = True
    is_pretrained = True

    def model(self):
        config = transformers.LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            vocab_size=ROWS,
        )
        return transformers.LlamaForCausalLM(config).bfloat16()

    def batch(self, size):
        return torch.zeros(size, 4, dtype=torch.long)

    def loss(self, model, batch):
        return model(batch, labels=batch).loss


def loading_bytes(options, settings=None, *, is_pretrained=True):
    loaded = finding.load(Mine(), {"lora_r": 2, "lora_targets": "q_proj,v_proj", **options})
    with torch.device("meta"):
        model = adapt.planned_model(loaded)
    return host_memory.loading_bytes(model, loaded, Settings(**settings or {}), is_pretrained=is_pretrained)


NF4 = {"weights": "fp16", "quantization": "nf4"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weights": "bf16"}, ADAPTERS),
        ({"weights": "fp16"}, ADAPTERS + 2 * NORMS + 2 * EMBEDDING),
        ({"weights": "fp32"}, ADAPTERS + 4 * NORMS + 4 * EMBEDDING),
        (NF4, ADAPTERS + 4 * NORMS + (2 + 4) * EMBEDDING),
        ({**NF4, "unquantized": "own"}, ADAPTERS + 2 * NORMS + 2 * EMBEDDING),
        # DoRA casts all weights before, and has a fp32 number for each output of an adapted layer.
        (
            {"weights": "fp16", "lora_dora": True},
            ADAPTERS + 4 * LAYERS * 2 * HIDDEN + 2 * (NORMS + 2 * EMBEDDING + LAYERS * BLOCK),
        ),
    ],
    ids=str,
)
def test_one_weight_at_a_time(options, expected):
    assert loading_bytes(options) == expected


def test_a_model_with_random_weights_is_in_memory():
    whole = 2 * (2 * EMBEDDING + NORMS + LAYERS * BLOCK)
    assert loading_bytes({"weights": "bf16"}, is_pretrained=False) == ADAPTERS + whole


@pytest.mark.parametrize("source", ["host", "disk"])
def test_a_streamed_block_has_all_of_its_values_at_once(source):
    in_blocks, of_block = LAYERS * 2 * BLOCK, ADAPTERS // LAYERS
    settings = {"streamed_blocks": LAYERS, "stream_from": source}
    # A block's streamed weights are its matrices and its two norms, which are cast before.
    held = ADAPTERS + 2 * NORMS
    first = held + 2 * BLOCK - of_block
    streamed_norms = LAYERS * 4 * HIDDEN
    last = 2 * BLOCK + 2 * NORMS - streamed_norms + 4 * HIDDEN
    embedding = 2 * NORMS - streamed_norms + 2 * EMBEDDING
    expected = max(first, embedding) if source == "disk" else max(first - in_blocks - streamed_norms, last, embedding)
    assert loading_bytes({"weights": "fp16"}, settings) == expected


def test_divided_blocks_have_their_values_together():
    assert loading_bytes({"weights": "fp16"}, {"sharding": "zero3"}) == 2 * (2 * EMBEDDING + HIDDEN)


def test_the_weights_that_a_process_has_are_those_that_are_predicted(monkeypatch):
    loaded = finding.load(Mine(), {"lora_r": 2, "lora_targets": "q_proj,v_proj", "weights": "fp32"})
    base = loaded.recipe.model()
    files = [weight.data for weight in base.parameters()]  # whose addresses no other tensor has as long as they exist
    in_files = {tensor.untyped_storage().data_ptr() for tensor in files}
    model = adapt.trained_model(base, loaded.adaptation, Settings(), keeps_stored_type=True)
    convert, sizes = deferred_casts.convert, []

    def measured(tensor):
        convert(tensor)
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in model.parameters()}
        own = [storage.nbytes() for address, storage in storages.items() if address not in {0, *in_files}]
        sizes.append(sum(size for size in own if size > 4))  # a weight without values has one element

    monkeypatch.setattr(deferred_casts, "convert", measured)
    placement.move(model, object(), Settings(), torch.device("meta"))
    assert max(sizes) == loading_bytes({"weights": "fp32"})
