"""From a Program to numbers: compile once, cache by identity, bind memory, run.

Importing this package loads nothing; its modules are `build`, `cache`, `library`, `pool`,
`memory`, `weights`, `session` and `doctor`.
"""
