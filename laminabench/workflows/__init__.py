"""One package per workflow; each takes a request and returns data."""
