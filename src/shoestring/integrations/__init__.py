"""Other people's trainers, with what `train` has: a deadline, checkpoints that survive, exact resume, a record."""
