"""The model card of a run, in the layout that Hugging Face's hub reads."""

import re

from comatch.commands.report.page.facts import Facts
from comatch.commands.report.page.page import accuracy, environment, learned_from, quality
from comatch.errors import printable

NAME = "model_card.md"
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")


def render(facts: Facts) -> str:
    """The card as Markdown. Names cannot add markup to it."""
    measured = facts.measured()
    jinja = environment()
    jinja.filters["md"] = lambda text: SPECIAL.sub(r"\\\1", printable(str(text)))
    values = {
        "name": facts.path.resolve().name,
        "classes": facts.classes,
        "accuracy": accuracy(facts, measured),
        "learned": learned_from(facts),
        "weakest": quality(measured)["by_class"][:3] if measured else [],
        "labelled": len(facts.split.get("labelled", ())),
        "answers": facts.answers is not None,
        "command": printable(facts.sessions[0]["command"]) if facts.sessions else None,
    }
    return jinja.get_template("model_card.md.j2").render(values)
