"""Charts of results, each built once."""
