"""The ONNX graph of the temporal networks."""

from torch import nn

from shoestring.recipe.exports import OnnxGraph
from shoestring_recipes.temporal.features import FEATURES
from shoestring_recipes.temporal.windows import CLASSES


def graph(model: nn.Module) -> OnnxGraph:
    """Return the graph from sequences of standardized features to the logits of the classes."""
    return OnnxGraph(
        module=model,
        inputs={"features": {0: "batch"}},
        outputs={"logits": {0: "batch"}},
        read=lambda batch: [batch[0]],
        compute=lambda batch: [model(batch[0])],
        facts={"features": list(FEATURES), "classes": list(CLASSES)},
        notes=[
            "`features` (batch, bars, 29) float32 are the features of consecutive bars, the latest last, in the order "
            "of `graph.json`, standardized with the mean and deviation of the training data.",
            "`logits` (batch, 3) float32 are scores of the classes; their softmax is the probability of each class.",
        ],
    )
