# SPDX-License-Identifier: Apache-2.0
"""The command ``ronde`` of the environment that the package is installed in."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the package's program."""
    program = os.path.join(os.path.dirname(__file__), "bin", "ronde")
    os.execv(program, ["ronde", *sys.argv[1:]])
