"""Run the command line by `python -m shoestring`."""

from shoestring.cli import main

main()
