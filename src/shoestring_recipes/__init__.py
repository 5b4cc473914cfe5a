"""The built-in recipes: the five guides that people wrote by hand, and `finetune` for any language model.

A recipe is a class with a few plain functions and a frozen dataclass of options. They are found through the entry
points of this distribution, as recipes of any other are, and import what those may import: the contract of a recipe and
helpers for data and weights. Shoestring imports none of them and knows no option of them by name; what a plan has to
know, an option says of itself.

What several recipes share lies beside them (`rows.py`, `images.py`, ...). Each works without files and without a
network, on data that it makes or carries, so that it can be tried before there are any.
"""
