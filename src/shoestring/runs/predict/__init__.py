"""The verb predict: answers of a trained model to new inputs, in files, in Python and in a conversation."""
