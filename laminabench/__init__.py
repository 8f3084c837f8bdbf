"""laminabench: would splitting attention from the model beat what you serve with today, and by how much?"""

from laminabench.version import __version__

__all__ = ["__version__"]
