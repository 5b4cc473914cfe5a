"""The files of this guide's readers, small and synthetic."""

from pathlib import Path

from tests.docs.guide_data import write_chart

write_chart(Path())
