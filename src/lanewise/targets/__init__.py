"""What programs are compiled for: `cpu` (the machine at hand, or another by name) and `null`.

A target says how a compiler is called; it never runs one (`runtime.build` does).
"""
