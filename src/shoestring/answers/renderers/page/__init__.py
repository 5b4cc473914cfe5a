"""Documents as pages: one self-contained HTML file each, without scripts or network access."""
