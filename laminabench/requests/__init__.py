"""Typed requests: the options of each command, with types, units and help."""
