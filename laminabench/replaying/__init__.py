"""What `laminabench.replay` is made of: the run of a request, and its journal."""
