"""A Run: the result of one replay, as a directory that appears whole or not at all."""
