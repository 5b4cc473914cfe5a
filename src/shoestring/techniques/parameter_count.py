"""How many parameters a model has, and how many of them are trained."""

from torch import nn

from shoestring.base.units import parameters_text


class ParameterCount:
    """The parameters of `model`; packed 4-bit weights, two in a byte, count one by one."""

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        # Packed weights report their number of values as `unpacked_numel`.
        self.total = sum(getattr(parameter, "unpacked_numel", parameter.numel()) for parameter in parameters)
        self.trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)

    def json(self) -> dict[str, int]:
        """Return both numbers by name."""
        return {"total": self.total, "trainable": self.trainable}

    def __str__(self) -> str:
        return parameters_text(self.total, self.trainable)
