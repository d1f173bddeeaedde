from pathlib import Path


def write(page: Path, out: Path) -> None: ...
