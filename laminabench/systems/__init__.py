"""Systems that a trace can be replayed against: one file each, from a deployment to a modelled cluster."""
