"""Channels between workers, measured: ping-pong over each engine, and on a GPU's stream."""
