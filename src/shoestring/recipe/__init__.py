"""What is trained: the protocol of a recipe, its options, and how one is found and loaded.

In goes a name, a path or an object, and values for options; out comes a `LoadedRecipe`: the object, its options with
checked values, its optional parts with their defaults, and the digests of the files that it came from.

A recipe is plain Python that inherits from nothing, so all that is known of it is read off its attributes, and a name
that is almost one of a part is an error: it would be ignored, and something else trained. Only `finding.py` and
`source.py` execute a recipe's file; whether it may be executed is decided before
(`training/run_directory/trust.py`). To import the package does not import torch. It knows neither the engine nor the
planner: what it says about a recipe has to hold for both.
"""
