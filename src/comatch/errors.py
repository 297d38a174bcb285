"""Errors that the user can correct."""

import re
from collections.abc import Sequence

TOO_LITTLE_MEMORY = "the GPU has too little memory for this: lower --set batch=... or --set mu=..."
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """One line that says what is wrong and what to do; the command line prints it, exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Text in one line: names of files and classes can have line breaks and undecodable bytes."""
    return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def encoded(text: str) -> bytes:
    """Text as UTF-8. Undecodable bytes of the names of files are written as they are."""
    return text.encode(errors="surrogateescape")


def shortened(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """The first items and the number of the others, for a message of one line."""
    more = len(items) - most
    return between.join(map(str, items[:most])) + (f" and {more} more" if more > 0 else "")
