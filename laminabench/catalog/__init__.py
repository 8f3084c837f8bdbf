"""The modelled cluster: hardware, models, prices, networks and what every operation costs on them."""
