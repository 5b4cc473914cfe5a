"""The verb export: a trained model as a folder that other libraries load."""
