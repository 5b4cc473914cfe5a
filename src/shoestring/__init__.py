"""Train real models on free and small GPUs: plan first, survive what small machines do, continue bit for bit."""

__version__ = "0.1.0"
