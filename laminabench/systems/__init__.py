"""What a trace can be replayed against: one file a system, from a deployment to a modelled cluster."""
