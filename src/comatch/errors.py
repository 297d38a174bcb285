"""Errors that the user can correct."""

from collections.abc import Sequence

TOO_LITTLE_MEMORY = "the GPU has too little memory for this: lower --set batch=... or --set mu=..."


class UserError(Exception):
    """One line that says what is wrong and what to do; the command line prints it, exit code 2."""


def shortened(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """The first items and the number of the others, for a message of one line."""
    more = len(items) - most
    return between.join(map(str, items[:most])) + (f" and {more} more" if more > 0 else "")
