"""`python -m crucible`."""

from crucible.cli import main

if __name__ == "__main__":
    main()
