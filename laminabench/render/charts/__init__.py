"""Charts of results, each built once for every back-end."""
