"""Runs that are not on this machine: sessions on Kaggle, notebooks, and copies of a run elsewhere.

In goes a run with its plan; out come requests to a service, files to upload, and a run's directory that continues on
another machine (`kaggle`, `notebook`, `backup`). Sessions have no index that has this copy of Shoestring, so it travels
as a wheel made of the running copy (`wheel.py`), with wheels of what the platform's image lacks (`wheels.py`).

What comes back is not trusted: it is verified by the digests that the session left, and only files that a run consists
of are taken. No key of an account is stored or put into a file that is sent: the services' own clients find it.
"""
