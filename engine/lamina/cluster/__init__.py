"""Model workers and attention workers as processes: on this machine, each on a core of its own."""

from lamina.cluster.core import ClusterCore
from lamina.cluster.layout import Layout, Scaled
from lamina.cluster.machine import LostError, Machine, Replaced, Workplace

__all__ = ["ClusterCore", "Layout", "LostError", "Machine", "Replaced", "Scaled", "Workplace"]
