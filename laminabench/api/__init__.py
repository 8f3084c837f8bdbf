"""The Python API: replays, comparisons and plans as objects with text and HTML representations."""
