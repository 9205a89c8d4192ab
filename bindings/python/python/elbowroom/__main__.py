"""`python -m elbowroom`: the command `elbowroom`."""

import sys

from ._commands import main

sys.exit(main())
