import copy

import torch
from torch import nn
from transformers import BlipVisionConfig, BlipVisionModel

from shoestring.recipes.vqa import VQA, Options
from shoestring.recipes.vqa.attention import Fused, fuse

SHAPE = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3}


def pair() -> tuple[nn.Module, nn.Module]:
    """One model with transformers' attention and with ours; scores of some size, so that they matter."""
    torch.manual_seed(0)
    whole = BlipVisionModel(BlipVisionConfig(**SHAPE, image_size=40, patch_size=8, initializer_range=0.5)).train()
    fused = copy.deepcopy(whole)
    fuse(fused)
    return whole, fused


def test_numbers_and_gradients_are_those_of_transformers() -> None:
    torch.manual_seed(1)
    images, found = torch.randn(2, 3, 40, 40), []
    for model in pair():
        looked = model(pixel_values=images).last_hidden_state
        looked.square().mean(dim=1).sum().backward()
        found.append((looked, {name: x.grad for name, x in model.named_parameters()}))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_the_scores_are_not_kept() -> None:
    kept = []
    for model in pair():
        sizes: list[int] = []

        def size(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(size, lambda tensor: tensor):
            model(pixel_values=torch.zeros(1, 3, 40, 40))
        kept.append(3 * 26 * 26 in sizes)
    assert kept == [True, False]


def test_weights_keep_their_names_and_dropout_is_trainings_alone() -> None:
    whole, fused = pair()
    assert list(whole.state_dict()) == list(fused.state_dict())
    attention = fused.encoder.layers[0].self_attn
    attention.dropout = 0.9
    patches = torch.randn(1, 26, 24)
    assert not torch.equal(attention(patches)[0], attention(patches)[0])
    attention.eval()
    assert torch.equal(attention(patches)[0], attention(patches)[0])


def test_the_published_way_keeps_the_published_attention() -> None:
    for forwards, ours in (("shared", True), ("guide", False)):
        model = VQA(Options(size="tiny", forwards=forwards)).model()
        assert all(isinstance(layer.self_attn, Fused) == ours for layer in model.vision.encoder.layers)
