"""The libraries that Shoestring requires: which are here, which versions are tested, and what is wrong with them.

In goes the metadata of installed distributions, or the exception of an import that failed; out comes the list of what
is missing, too old or too new, or one error with the command of pip that repairs it.

A library is judged by its metadata and never imported to be judged: importing one takes seconds, and a broken one may
end the process. The requirements themselves are in pyproject.toml alone; `constraints/` pins what the tests run on.
"""
