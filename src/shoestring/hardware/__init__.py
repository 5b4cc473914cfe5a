"""Hardware to train on: a catalogue of GPUs and platforms, and the detection of this machine. Does not import torch."""
