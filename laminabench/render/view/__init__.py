"""The explorer: local web pages over a folder of Runs, sweeps, plans and validations."""
