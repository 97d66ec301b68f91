"""Resources, variants of networks, and running many simulations."""
