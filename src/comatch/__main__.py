"""`python -m comatch` is the command line."""

from comatch.cli import main

if __name__ == "__main__":
    main()
