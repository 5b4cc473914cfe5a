"""The engine on one simulated GPU, with real values: its weights, losses and states against those of the CPU."""
