"""What saves memory or time: changes of a model or an optimizer that leave what is learnt as it is, or are asked for.

In go a module, an optimizer and the settings or options that ask for a change; out comes the same object, changed.
Estimates and training call the same functions: a plan of a technique that training applies in another way would be
worthless. So each of them works with fake tensors too, and a library that cannot (bitsandbytes) has a placeholder with
the same shapes beside it. `fallbacks.py` is the table of what is given up, in which order, on out-of-memory.

A technique never chooses itself: `planning` proposes it or a person sets it. It never changes the effective batch, and
it knows neither the loop nor the run's directory.
"""
