"""The command line: parse, call, print. What a command does is decided elsewhere."""
