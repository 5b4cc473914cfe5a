"""The versions of libraries that the tests run on, of those that results may depend on.

They are those of the stacks in `constraints/`, which are not installed; a test compares the two. A version between them
should work, and `shoestring check` says that it is untested.
"""

TESTED = {
    "torch": ("2.10.0", "2.11.0", "2.13.0"),
    "numpy": ("1.26.0", "2.0.2", "2.1.3", "2.4.6"),
    "safetensors": ("0.5.0", "0.7.0", "0.8.0"),
    "transformers": ("4.56.2", "5.0.0", "5.15.0", "5.23.0"),
    "tokenizers": ("0.22.2", "0.23.3"),
    "accelerate": ("1.13.0", "1.14.0", "1.15.0"),
    "peft": ("0.15.0", "0.19.1", "0.20.0", "0.21.2"),
    "trl": ("1.10.0", "1.16.0"),
    "pandas": ("2.2.0", "2.2.2", "2.2.3", "3.1.1"),
    "torchmetrics": ("1.6.0", "1.9.0"),
}
"""By library: the version of each stack, oldest first."""
