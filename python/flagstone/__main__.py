"""`python -m flagstone`: the command line."""

import sys

from flagstone.cli import main

if __name__ == "__main__":
    sys.exit(main())
