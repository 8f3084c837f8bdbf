"""Benchmarks of laminabench and its engine on this machine, with their targets."""

import lamina  # noqa: F401 - it says how long torch's threads spin, of a torch that is imported after it
