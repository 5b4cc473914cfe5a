"""Memory-saving changes of a model or an optimizer, which estimates and training apply in the same way."""
