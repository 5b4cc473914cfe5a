"""How the processes of a session share its work: a strategy for one process, for replicas and for divided weights.

The steps of training do not know how many processes there are. What differs between the strategies is their interface,
`one_process.Processes`:

| | one process | replicas (`replicas.py`) | divided weights (`divided_weights.py`) |
|---|---|---|---|
| an update | `engine/one_process.py`, for one logical shard | `engine/parallel/updates.py` | the same, with FSDP2 |
| out-of-memory | of this process | the processes agree on it after each piece of work | the same, or all start again |
| what is saved | the state | the first saves, after their weights were compared | each saves its rows |
| who evaluates | the process | they divide the batches, or the first | all compute each batch together |
| work of one model | the process | the first, while the others wait | nobody: no process has the whole model |

`steps.py` has the decorators of the steps that only some of the processes take, or that they take together. `choice.py`
chooses the strategy.
"""
