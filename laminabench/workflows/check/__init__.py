"""Goldens: what replays came to, and what moved since."""
