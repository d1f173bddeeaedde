"""Values in words and colours, as a panel's field says: units, mappings, thresholds. Pure."""

from __future__ import annotations

import math
import time
from typing import Any, Final

FILL: Final = {
    "green": "#3f9142", "yellow": "#d9a800", "orange": "#e8710a", "red": "#d8323f",
    "dark-red": "#8f1022", "blue": "#3d7bd9", "purple": "#8d4fc0", "text": "", "transparent": "",
}  # fmt: skip


def text_of(value: float | str, field: dict[str, Any]) -> str:
    """A value as its panel says it."""
    mapped = _mapped(value, field)
    if mapped is not None:
        return str(mapped["text"])
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return ""
    return _number(value, field.get("unit", "none"), field.get("decimals"))


def colour_of(value: float | str, field: dict[str, Any]) -> str:
    """Its colour, by what it is called or by its threshold; empty for none."""
    mapped = _mapped(value, field)
    if mapped is not None:
        return FILL.get(str(mapped.get("color", "")), "")
    if isinstance(value, str):
        return ""
    colour = ""
    for step in field.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return FILL.get(colour, "")


def _mapped(value: float | str, field: dict[str, Any]) -> dict[str, Any] | None:
    key = value if isinstance(value, str) else f"{value:g}"
    for mapping in field.get("mappings", []):
        found = mapping.get("options", {}).get(key)
        if found is not None:
            return dict(found)
    return None


def _number(value: float, unit: str, decimals: int | None) -> str:
    digits = 2 if decimals is None else decimals
    if unit == "percentunit":
        return f"{value:.{1 if decimals is None else decimals}%}"
    if unit.startswith("dateTime"):
        return time.strftime("%m-%d %H:%M:%S", time.gmtime(value / 1000))
    if unit == "bytes":
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024:
                return f"{value:.3g} {name}"
            value /= 1024
        return f"{value:.3g} TiB"
    if unit == "s":
        return _seconds(value)
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return text + unit.removeprefix("suffix:") if unit.startswith("suffix:") else text


def _seconds(value: float) -> str:
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(value) >= 2 * size:
            return f"{value / size:.1f} {name}"
    return f"{value:.3g} s" if abs(value) >= 1 or not value else f"{value * 1000:.3g} ms"


def shown(
    panel: dict[str, Any], rows: list[dict[str, Any]]
) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, title, field) of a table's columns, in its order."""
    (organize,) = [one["options"] for one in panel["transformations"] if one["id"] == "organize"]
    names = {name for row in rows for name in row} - set(organize["excludeByName"])
    order = organize["indexByName"]
    found = []
    for name in sorted(names, key=lambda one: (order.get(one, 99), one)):
        title = organize["renameByName"].get(name, name)
        field: dict[str, Any] = dict(panel["fieldConfig"]["defaults"])
        for one in panel["fieldConfig"]["overrides"]:
            if one["matcher"]["options"] == title:
                field |= {said["id"]: said["value"] for said in one["properties"]}
        field["coloured"] = "custom.cellOptions" in field
        found.append((name, title, field))
    return found
