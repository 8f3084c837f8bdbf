"""The errors a person is meant to read: one sentence that says what, where and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Wrong use or bad input. The command line prints the sentence and exits with 2."""


class CheckFailedError(Exception):
    """A check said no (a regression, a checksum, a failed gate). The command line exits with 1."""
