"""Everything that a machine with a GPU can tell, by one command."""

KERNELS = "kernels.toml"  # what the step of that name leaves for others to read
