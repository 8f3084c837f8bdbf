"""Pictures of results, one file each."""
