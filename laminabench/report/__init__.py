"""A self-contained HTML page about Runs."""
