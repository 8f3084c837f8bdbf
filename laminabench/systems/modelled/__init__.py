"""Systems that are replayed in virtual time, on hardware that need not be there."""
