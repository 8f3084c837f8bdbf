"""Python interface of the simulator: specs in, outcomes out."""
