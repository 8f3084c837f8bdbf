"""`python -m laminabench`."""

from laminabench.cli.main import run

run()
