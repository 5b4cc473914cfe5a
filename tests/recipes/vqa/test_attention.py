import copy

import torch
from torch import nn
from transformers import BlipVisionConfig, BlipVisionModel

from shoestring_recipes.vqa import VQA, Options
from shoestring_recipes.vqa.attention import FusedAttention, fuse_attention

SHAPE = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3}


def build_models() -> tuple[nn.Module, nn.Module]:
    """Return a model with transformers' attention and a copy with ours; the weights are large, so that scores vary."""
    torch.manual_seed(0)
    original = BlipVisionModel(BlipVisionConfig(**SHAPE, image_size=40, patch_size=8, initializer_range=0.5)).train()
    fused = copy.deepcopy(original)
    fuse_attention(fused)
    return original, fused


def test_features_and_gradients_match_transformers() -> None:
    torch.manual_seed(1)
    images, results = torch.randn(2, 3, 40, 40), []
    for model in build_models():
        features = model(pixel_values=images).last_hidden_state
        features.square().mean(dim=1).sum().backward()
        results.append((features, {name: x.grad for name, x in model.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


def test_scores_are_not_saved_for_backward() -> None:
    saves_scores = []
    for model in build_models():
        sizes: list[int] = []

        def record_size(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
            model(pixel_values=torch.zeros(1, 3, 40, 40))
        saves_scores.append(3 * 26 * 26 in sizes)
    assert saves_scores == [True, False]


def test_weight_names_are_unchanged_and_eval_disables_dropout() -> None:
    original, fused = build_models()
    assert list(original.state_dict()) == list(fused.state_dict())
    attention = fused.encoder.layers[0].self_attn
    attention.dropout = 0.9
    patches = torch.randn(1, 26, 24)
    assert not torch.equal(attention(patches)[0], attention(patches)[0])
    attention.eval()
    assert torch.equal(attention(patches)[0], attention(patches)[0])


def test_guide_forwards_use_the_published_attention() -> None:
    for forwards, is_fused in (("shared", True), ("guide", False)):
        model = VQA(Options(size="tiny", forwards=forwards)).model()
        assert all(isinstance(layer.self_attn, FusedAttention) == is_fused for layer in model.vision.encoder.layers)
