"""Workers as actors of a Ray cluster, on whichever node has what they need."""

from lamina.cluster.ray.machine import RayMachine

__all__ = ["RayMachine"]
