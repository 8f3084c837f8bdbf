"""Typed results as a person or a program reads them: on a terminal, as Markdown, as JSON."""
