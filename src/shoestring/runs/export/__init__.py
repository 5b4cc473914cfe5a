"""The verb export: a trained model as a folder that other libraries load.

In go a `Run` and the name of a format; out comes a folder with the files of the format, a model card and digests. A
recipe writes its own formats; `safetensors` and, with a graph of the recipe, `onnx` exist for each.

A folder appears under its name only when it is complete and its outputs are those of the model on the recipe's data
(`folder.py`). An existing folder is replaced only on request.
"""
