"""The command and the libraries that are a part of the package."""

import os
import shutil
import sys

BIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def find(name):
    """The path of a command: that of the package, else that of PATH.

    FileNotFoundError: there is none.
    """
    own = os.path.join(BIN, name)
    if os.access(own, os.X_OK):
        return own
    found = shutil.which(name)
    if found is None or os.path.realpath(found) == os.path.realpath(sys.argv[0]):
        raise FileNotFoundError(f"this package was built without the command {name}: build it by build-wheel")
    return found


def main():
    """Becomes the command `elbowroom`."""
    try:
        path = find("elbowroom")
    except FileNotFoundError as error:
        print(f"elbowroom: {error}", file=sys.stderr)
        return 127
    os.execv(path, ["elbowroom", *sys.argv[1:]])
