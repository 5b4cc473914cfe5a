"""Whatever a person is shown: answers in a terminal and in a notebook, a run as a page."""
