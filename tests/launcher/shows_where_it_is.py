"""A module that a launcher starts: it prints its rank and its arguments."""

import os
import sys

print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:])
