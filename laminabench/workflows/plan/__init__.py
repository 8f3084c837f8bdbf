"""The search for the deployment that serves a trace cheapest within a limit of time between tokens."""
