"""What builds the documentation: the reference pages that are made from the code, and the hooks of mkdocs."""
