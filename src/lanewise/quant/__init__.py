"""Quantised formats of checkpoints and of activations: what their bits mean."""
