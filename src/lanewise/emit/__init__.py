"""From plans to the text of a program."""
