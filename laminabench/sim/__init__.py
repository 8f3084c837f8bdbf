"""The Python face of the virtual cluster: what to simulate, and what came out."""
