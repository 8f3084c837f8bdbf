"""The papers' figures and tables, one file each: names as `laminabench figures --list` has them."""
