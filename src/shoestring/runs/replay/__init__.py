"""The verb replay: one update of a run, made again and watched."""
