"""`python -m lanewise` is the command `lanewise`."""

from lanewise.cli import main

if __name__ == "__main__":
    main()
