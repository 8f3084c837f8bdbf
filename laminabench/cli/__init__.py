"""The command line: commands parse, call and print; other packages do the work."""
