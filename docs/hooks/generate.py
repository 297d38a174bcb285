"""MkDocs hook: generate the reference pages of settings, methods and commands from the code."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from comatch import cli, config, methods, recipes
from comatch.training.recipe import Recipe

GROUPS = {  # the title of each group of settings, by its class
    "DataConfig": "Data",
    "StreamConfig": "Images read during training",
    "ViewConfig": "Augmentation",
    "ModelConfig": "Network",
    "OptimConfig": "Optimisation",
    "Recipe": "Run",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"settings": settings_page, "methods": methods_page, "command-line": commands_page}
    for name, page in pages.items():
        path = f"reference/{name}.md"
        files.append(File.generated(config, path, content="\n".join(page()) + "\n"))
    return files


# -------------------------------------------------------------------------------- settings


def settings_page() -> Iterator[str]:
    yield "# Settings and recipes\n"
    yield "Give any of these settings with `--set KEY=VALUE` on the command line, or with"
    yield '`settings={"KEY": VALUE}` in Python. A recipe is a complete set of values.'
    yield "`comatch recipes NAME` prints all values of a recipe.\n"
    yield "Settings of the methods are on [a page of their own](methods.md).\n"
    yield "## Settings\n"
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for group, field in config.parts_of(Recipe()):
        groups.setdefault(type(group).__name__, []).append((group, field))
    for name, title in GROUPS.items():
        yield f"### {title}\n"
        yield from settings_table(groups[name])
    yield "## Recipes\n"
    yield "A recipe changes the defaults above as its table says. The values are those for"
    yield "its default method; `comatch recipes NAME --method METHOD` prints those for another.\n"
    for name, text in recipes.descriptions().items():
        yield f"### {name} {{#{name}}}\n"
        yield from recipe_section(name, text)


def recipe_section(name: str, text: str) -> Iterator[str]:
    summary, *rest = text.split("\n\n")
    yield summary + "\n"
    for part in rest:
        facts = re.findall(r"^(Command|Cost|Result|Paper) +(.*)$", part, re.MULTILINE)
        if not facts:
            yield part + "\n"
            continue
        for title, fact in facts:
            yield f"- {title}: " + (f"`{fact}`" if title == "Command" else escaped(fact))
        yield ""
    recipe = recipes.get(name)
    default = config.values_of(Recipe(method=methods.config(recipe.method.method)))
    method = set(config.settings_of(recipe.method))
    changed = [
        (f"`{key}`", value_text(value), "method" if key in method else "")
        for key, value in config.values_of(recipe).items()
        if value != default[key]
    ]
    yield f"Method: [{recipe.method.method}](methods.md#{recipe.method.method})\n"
    yield from table(
        ("setting", "value"), [(key + (" (method)" if own else ""), v) for key, v, own in changed]
    )


def settings_table(fields: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    rows = []
    for group, field in fields:
        bounds = field.metadata.get("bounds")
        takes = ", ".join(bounds.choices) or str(bounds) if bounds else ""
        value = value_text(getattr(group, field.name))
        rows.append((f"`{field.name}`", value, takes, escaped(field.metadata["says"])))
    yield from table(("setting", "default", "values", "meaning"), rows)


def value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def methods_page() -> Iterator[str]:
    yield "# Methods and their settings\n"
    yield "Choose a method with `--method NAME`. Its settings are given as all others are,"
    yield "with `--set KEY=VALUE`. The defaults are those of the method's own paper where it"
    yield "has one; a [recipe](settings.md#recipes) may change them. Methods without labels are for"
    yield "`comatch pretrain`, all others for `comatch train`.\n"
    for name in (*methods.METHODS, *methods.PRETRAINING):
        method = methods.find(name)
        yield f"## {name} {{#{name}}}\n"
        source = sys.modules[method.__module__].__doc__ or inspect.getdoc(method) or ""
        yield from prose(source.strip())
        if method.views:
            yield f"Views of each unlabelled image: {', '.join(method.views)}.\n"
        yield from settings_table(config.parts_of(methods.config(name)))
        page = name if method.uses_labels else f"pretraining/{name}"
        yield f"More: [the method and our implementation](../explanation/methods/{page}.md)\n"


def prose(docstring: str) -> Iterator[str]:
    """A docstring as Markdown: indented lines are equations and stay as they are."""
    for line in docstring.splitlines():
        yield line if line.startswith("    ") else escaped(line)
    yield ""


# -------------------------------------------------------------------------------- commands


def commands_page() -> Iterator[str]:
    yield "# Command line\n"
    yield "`comatch COMMAND --help` prints the same text.\n"
    yield "An error of the user is one line, and the exit code is 2.\n"
    yield from command_sections(get_command(cli.app), "comatch")


def command_sections(command: Any, name: str) -> Iterator[str]:
    for sub in command.commands.values():
        full = f"{name} {sub.name}"
        if hasattr(sub, "commands"):
            yield from command_sections(sub, full)
            continue
        yield f"## {full}\n"
        yield from help_text(sub.help or "")
        shown = [p for p in sub.params if not getattr(p, "hidden", False) and p.name != "help"]
        yield from table(
            ("argument or option", "default", "meaning"),
            [(written(p), default_of(p), escaped(plain(p.help or ""))) for p in shown],
        )


def written(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    value = "" if parameter.is_flag else " " + (parameter.metavar or kind_of(parameter))
    return f"`{names}{value}`"


def kind_of(parameter: Any) -> str:
    """What an option without a metavar takes."""
    descriptor = getattr(parameter, "type_descriptor", None)  # newer versions of typer
    kind = descriptor.annotation.__name__ if descriptor else parameter.type.name
    kinds = {"int": "N", "integer": "N", "float": "X", "Path": "PATH", "path": "PATH"}
    return kinds.get(kind, "TEXT")


def default_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "required" if parameter.required else ""
    if parameter.is_flag and parameter.secondary_opts:
        return f"`{(parameter.opts if parameter.default else parameter.secondary_opts)[0]}`"
    plain_value = isinstance(parameter.default, str | int | float) and not parameter.is_flag
    shown = plain_value or hasattr(parameter.default, "parts")
    return f"`{parameter.default}`" if shown and str(parameter.default) else ""


def help_text(text: str) -> Iterator[str]:
    """Paragraphs of help; lines that show a command become a block of code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if lines and all(line.startswith("[bold]comatch") for line in lines):
            yield "```sh"
            yield from (plain(line) for line in lines)
            yield "```\n"
        else:
            said = re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", "\n".join(lines))
            yield said.replace("\\[", "[") + "\n"


def plain(text: str) -> str:
    """Without rich's markup; what a command line explains becomes a comment."""
    command, closed, comment = text.replace("[bold]", "").partition("[/]")
    text = command + (f"  # {comment.strip()}" if closed and comment.strip() else "")
    return text.replace("\\[", "[")


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
