"""Mistakes that the person at the keyboard can mend."""

TOO_LITTLE_MEMORY = "the GPU has too little memory for this: lower --set batch=... or --set mu=..."


class UserError(Exception):
    """Shown as one line that says what is wrong and what to do; the command line exits with 2."""
