"""Pictures, one file each."""
