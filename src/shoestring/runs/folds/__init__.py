"""Cross-validation: a run for each fold, out-of-fold predictions, metrics of all folds, averaged predictions.

A cross-validation is a folder of runs, `fold-1` to `fold-5`, each of them a run like any other with the option `fold`.
Everything else is computed from them. So the same command continues it after any interruption: folds that are finished
are left out, the one that was interrupted continues from its checkpoint.
"""
