"""Model and attention workers: processes on cores or GPUs, or Ray actors; meeting, heartbeats, repair."""

from lamina.cluster.core import ClusterCore
from lamina.cluster.layout import Layout, Scaled
from lamina.cluster.machine import LostError, Machine, Replaced, Workplace

__all__ = ["ClusterCore", "Layout", "LostError", "Machine", "Replaced", "Scaled", "Workplace"]
