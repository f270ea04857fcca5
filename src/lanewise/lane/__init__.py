"""The front door for language models: a checkpoint's step, compiled, and what generates with it."""
