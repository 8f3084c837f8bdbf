"""Typed requests: what each command can be asked for, with types, units and help."""
