"""Models of transformers as GGUF files, which llama.cpp and the programs built on it read."""
