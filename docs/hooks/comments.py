"""Griffe extension: the comment behind an attribute is its description in the API reference.

steps: int | None = None  # optimiser steps
"""

from typing import Any

import griffe


class Comments(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring or attr.lineno is None or not attr.lines_collection:
            return
        line = attr.lines_collection[attr.filepath][(attr.endlineno or attr.lineno) - 1]
        _, mark, comment = line.partition("  # ")
        if mark and not comment.startswith("type:"):
            attr.docstring = griffe.Docstring(comment.strip(), parent=attr)
