"""What training can run on: a catalogue of facts with their sources, and a look at this machine. No torch here."""
