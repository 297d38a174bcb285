"""Settings: frozen dataclasses, each beside the code that reads it, nested in one `Recipe`.

The name of a setting is unique in the whole recipe, so a variant is `replace(recipe, alpha=1.0)`
whichever part the setting belongs to. The option `--set key=value` is the same function, with the
value read by the type of the field.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from comatch.errors import UserError


def setting(
    default: Any,
    says: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A field with one line of help, shown by `comatch recipes NAME`, and the values it takes."""
    bounds = Bounds(least, above, most, below, tuple(choices))
    return field(default=default, metadata={"says": says, "bounds": bounds})


@dataclass(frozen=True)
class Bounds:
    """The values that a setting takes. `None` is always one of them."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        if value is None:
            return
        if self.choices:
            check_name(value, self.choices, name)
        holds = (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )
        require(holds, f"{name}={value}: must be {self}")

    def __str__(self) -> str:
        """`at least 1`, `above 0`, `in [0, 1)`."""
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if low is not None and high is not None:
            left, right = "[("[self.least is None], "])"[self.most is None]
            return f"in {left}{low:g}, {high:g}{right}"
        if low is not None:
            return f"{'at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"{'at most' if self.below is None else 'below'} {high:g}"
        return ""


@dataclass(frozen=True)
class Config:
    """A group of settings. Making one checks the bounds that its fields declare."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            if "bounds" in one.metadata:
                one.metadata["bounds"].check(one.name, getattr(self, one.name))


@dataclass(frozen=True)
class NamedConfig(Config):
    """The settings of a method, beside its code."""

    method: ClassVar[str]  # the name after --method


@dataclass(frozen=True)
class MethodConfig(NamedConfig):
    """Settings that every method has that learns from labels. Each method adds its own."""

    ema_decay: float = setting(0.999, "decay of the EMA model", least=0, most=1)
    evaluate: str = setting(
        "ema",
        "weights that are evaluated and saved: ema (averaged) or raw (the network's own)",
        choices=("ema", "raw"),
    )


AnyConfig = TypeVar("AnyConfig", bound=Config)


def parts_of(config: Config) -> Iterator[tuple[Config, dataclasses.Field[Any]]]:
    """Every setting of a nested config with the group that it belongs to."""
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if isinstance(value, Config):
            yield from parts_of(value)
        elif "says" in one.metadata:
            yield config, one


def settings_of(config: Config) -> dict[str, dataclasses.Field[Any]]:
    """The fields that a person may set, by name."""
    return {one.name: one for _, one in parts_of(config)}


def values_of(config: Config) -> dict[str, Any]:
    """The value of every setting, by name."""
    return {one.name: getattr(group, one.name) for group, one in parts_of(config)}


def replace(config: AnyConfig, **changes: Any) -> AnyConfig:
    """The config with some settings changed, in whichever group they are."""
    known = settings_of(config)
    for key in changes:
        check_name(key, known, "setting")
    return _replaced(config, changes)


def _replaced(config: AnyConfig, changes: dict[str, Any]) -> AnyConfig:
    new: dict[str, Any] = {}
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if isinstance(value, Config):
            new[one.name] = _replaced(value, changes)
        elif one.name in changes and "says" in one.metadata:
            new[one.name] = changes[one.name]
    return dataclasses.replace(config, **new)


def parse(config: Config, assignments: Sequence[str]) -> dict[str, Any]:
    """`["alpha=1", "flip=no"]` as typed values: {"alpha": 1.0, "flip": False}."""
    hints = {one.name: _hint(group, one.name) for group, one in parts_of(config)}
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        require(bool(equals), f"--set {assignment}: write it as key=value")
        check_name(key, hints, "setting")
        values[key] = _parse_value(key, text, hints[key])
    return values


def require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def check_name(name: str, known: Collection[str], what: str) -> None:
    """Raise an error that suggests the nearest known name, if `name` is not known."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"
    raise UserError(f"unknown {what} '{name}': {hint}")


def to_json(config: Config) -> dict[str, Any]:
    """A nested config as plain values, a dictionary for each group."""
    plain: dict[str, Any] = {}
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        plain[one.name] = to_json(value) if isinstance(value, Config) else value
    if isinstance(config, NamedConfig):
        plain = {"name": config.method, **plain}
    return typing.cast(dict[str, Any], json.loads(json.dumps(plain)))


def flatten(plain: dict[str, Any]) -> dict[str, Any]:
    """What `to_json` wrote, with the groups dissolved; the method stays a dictionary."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, dict) and key != "method":
            flat |= flatten(value)
        else:
            flat[key] = value
    return flat


def known_settings(config: type[AnyConfig], values: dict[str, Any]) -> AnyConfig:
    """A config from those of the values that are its settings."""
    known = {one.name for one in dataclasses.fields(config)}
    return config(**{key: values[key] for key in known & values.keys()})


def labels_text(labels: int | float | None) -> str:
    """For people and the names of folders: all, 40, 1%."""
    if labels is None:
        return "all"
    return f"{100 * labels:.6g}%" if labels < 1 else str(labels)


NUMBER_OR_SHARE = "a whole number of at least 1, a share as in 1%, or none for all"


def parse_number_or_share(text: str) -> int | float:
    """`40`, `1%` or `0.01`."""
    text = text.strip().replace("_", "").replace(",", "")
    if text.endswith("%"):
        return round(float(text.removesuffix("%")) / 100, 12)
    return float(text) if "." in text else int(text)


def _hint(config: Config, name: str) -> Any:
    return typing.get_type_hints(type(config))[name]


def _parse_value(key: str, text: str, hint: Any) -> Any:
    """`text` as a value of the field's type."""
    wanted = [t for t in typing.get_args(hint) if t is not types.NoneType]
    if isinstance(hint, types.UnionType):
        if text.lower() in ("none", ""):
            return None
        hint = wanted[0]
    try:
        if wanted == [int, float]:
            return parse_number_or_share(text)
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if hint is int:
            return int(text.replace("_", "").replace(",", ""))
        if typing.get_origin(hint) is tuple:
            return tuple(float(part) for part in text.strip("()").split(","))
        return hint(text)
    except (ValueError, KeyError):
        kind = {bool: "yes or no", int: "a whole number", float: "a number"}.get(hint, "numbers")
        kind = NUMBER_OR_SHARE if wanted == [int, float] else kind
        raise UserError(f"--set {key}={text}: {key} takes {kind}") from None
