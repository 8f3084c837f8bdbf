"""laminabench: would splitting attention from the model beat the LLM serving you run today, and by how much?"""

from laminabench.version import __version__

__all__ = ["__version__"]
