"""Mistakes that the person at the keyboard can mend."""

from collections.abc import Sequence

TOO_LITTLE_MEMORY = "the GPU has too little memory for this: lower --set batch=... or --set mu=..."


class UserError(Exception):
    """Shown as one line that says what is wrong and what to do; the command line exits with 2."""


def shortened(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """The first of them, and how many more there are: a message stays one line."""
    more = len(items) - most
    return between.join(map(str, items[:most])) + (f" and {more} more" if more > 0 else "")
