"""Griffe extension: a table of the attributes of a class, described by the comments behind them.

class Images:
    images: Tensor  # [N, 3, H, W] uint8
"""

import ast
from typing import Any

import griffe


class Comments(griffe.Extension):
    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        rows = []
        for name, one in list(cls.members.items()):
            if one.is_attribute and one.annotation and "property" not in one.labels:
                rows.append(f"    {name} ({one.annotation}): {described(one)}".rstrip())
                cls.del_member(name)
        if rows:
            text = cls.docstring.value if cls.docstring else ""
            text = "\n".join([text.rstrip(), "", "Attributes:", *rows])
            cls.docstring = griffe.Docstring(text, parent=cls, parser="google")


def described(attribute: griffe.Attribute) -> str:
    """The comment at the end of the attribute's line, or the help of a setting, and the default."""
    value = attribute.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
        return sentence(ast.literal_eval(str(value.arguments[1])))
    last = (attribute.endlineno or attribute.lineno or 1) - 1
    _, _, comment = attribute.lines_collection[attribute.filepath][last].partition("  # ")
    said = "" if comment.startswith("type:") else sentence(comment.strip())
    if "class-attribute" not in attribute.labels or not isinstance(value, str):
        return said
    return said if value == "None" else f"{said} Default: `{value}`.".strip()


def sentence(text: str) -> str:
    return text and text[0].upper() + text[1:] + "." * (text[-1] not in ".:")
