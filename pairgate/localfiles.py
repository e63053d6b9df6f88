"""Files of this machine that others may change while they are read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from pairgate.errors import InvalidInput, NotFound


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading, unbuffered.

    Raises `NotFound` when nothing is there, `InvalidInput` for anything else. `follow` lets the
    last part of the path be a link.
    """
    # NONBLOCK so that a pipe put in place of a file cannot hang us, NOFOLLOW so that a link
    # swapped in after the source was checked is not followed.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise NotFound(f"{path} is not there") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidInput(f"{path} is not a regular file")
    return open(fd, "rb", buffering=0)
