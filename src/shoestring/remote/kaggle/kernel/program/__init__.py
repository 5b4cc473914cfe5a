"""One session of a training run, sent by `shoestring kaggle start`.

It installs Shoestring from the attached dataset, copies the run that the session before left, trains until shortly
before the session's limit, and leaves what the next session (or your laptop) needs to go on, in /kaggle/working:

    shoestring-session.json   what has become of this session: finished, paused or failed, and why
    shoestring.log            the end of what was printed
    run/                      the run: copy it anywhere, and `shoestring train` continues it

CONFIG above says what to train. The script ends with exit status 0 also if training failed, because Kaggle may drop the
output of a script that does not. Until Shoestring is installed, only the standard library is used.
"""
