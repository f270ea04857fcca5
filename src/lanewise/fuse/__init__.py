"""Fusion: the numerics pass and the table of named rules."""
