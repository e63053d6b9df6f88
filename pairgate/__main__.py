"""`python -m pairgate`."""

from pairgate.cli import main

if __name__ == "__main__":
    main()
