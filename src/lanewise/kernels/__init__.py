"""The kernel library: a table of rows, the analysis of bodies, and the sources by target."""
