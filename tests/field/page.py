"""docs/field.md, from the records. Pure but for `write`."""
from pathlib import Path
def write(page: Path, out: Path) -> None:
    pass
