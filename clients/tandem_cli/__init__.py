"""The command ``tandem``: the composition root, and small tools for people."""
