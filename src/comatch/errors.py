"""Mistakes that the person at the keyboard can mend."""


class UserError(Exception):
    """Shown as one line that says what is wrong and what to do; the command line exits with 2."""
