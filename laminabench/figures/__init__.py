"""The papers' figures, one file each."""
