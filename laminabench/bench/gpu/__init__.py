"""Everything that a machine with a GPU can tell, by one command. Not verified on hardware."""
