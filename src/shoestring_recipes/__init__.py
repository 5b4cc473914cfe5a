"""The built-in recipes. They are found as recipes of any distribution are, and import what those may import."""
