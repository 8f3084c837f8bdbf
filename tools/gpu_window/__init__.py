"""All measurements of a machine with a GPU, by one command."""

KERNELS = "kernels.toml"  # what the step of that name leaves for others to read
