"""Other engines on the same weights, driven with the same work. Installed by ``make bench`` only."""
