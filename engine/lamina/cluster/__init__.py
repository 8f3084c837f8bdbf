"""Model workers and attention workers as processes: on this machine, each on a core of its own."""

from lamina.cluster.core import ClusterCore
from lamina.cluster.layout import Layout
from lamina.cluster.machine import LostError, Machine, Replaced, Workplace
from lamina.cluster.scaling import Scaled

__all__ = ["ClusterCore", "Layout", "LostError", "Machine", "Replaced", "Scaled", "Workplace"]
