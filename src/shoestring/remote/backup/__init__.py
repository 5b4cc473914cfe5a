"""Copies of a run off its machine: each verified checkpoint is copied in the background; a new machine begins from it.

    objects/<sha256>                             the content of a file, sent once
    commits/00000007-update-00001200-<id>.json   the files of one copy: complete or absent

A copy is trusted only if its commit is intact and every object has the size and the digest that the commit lists.
"""
