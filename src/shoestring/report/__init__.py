"""The page that shows a run: what was planned, what happened, what came out."""
