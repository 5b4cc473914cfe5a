"""What a person reads: each answer as a document, and the renderers of documents.

In goes a value, such as a `Plan` or an `Outcome`; out comes a `Document` (`document.py`): paragraphs, tables, curves
and commands, as data. There is one module for each answer, `report` for the record of a run, `compare` for several runs
and `watch` for one that trains. `faces.py` lists which class has which document.

`renderers` show any document in a terminal, in a notebook or as a page, and know no answer. What differs between the
faces is said in the document. Nothing here computes a number that `--json` does not have, and no text of a recipe or a
file reaches a terminal or a page unescaped.
"""
