"""Documents in notebooks: self-contained HTML without scripts, readable in light and dark themes."""
