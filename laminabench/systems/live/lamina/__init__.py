"""The reference engine on this machine: a replay by real clocks, and `laminabench serve`."""
