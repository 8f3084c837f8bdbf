"""The explorer: web pages over a folder of Runs, sweeps, plans and validations, for this machine alone."""
