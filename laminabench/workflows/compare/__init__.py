"""Deployments side by side: on the same requests, at about the same cost."""
