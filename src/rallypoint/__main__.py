"""`python -m rallypoint` is the command `rallypoint`."""

import sys

from rallypoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
