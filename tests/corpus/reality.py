"""Real records with known culprits, asked of the same tools."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tests.corpus.ask import EVERY, FIRST, NVRX, OURS, ours
from tests.corpus.rivals import PREFIX, Answer, Rival, missed, nvrx, readings, torchfrtrace

SHARED = [Path(__file__).parents[2] / "../shared/data", Path("/work/shared/data")]


def real_nccl() -> list[tuple[Path, set[int]]]:
    """Folders of real NCCL dumps, and the ranks into which a fault was injected."""
    root = next((one for one in SHARED if one.exists()), None)
    if root is None:
        return []
    out = []
    for log in sorted(root.glob("flight_recorder_nccl/*/fault_injection.log")):
        first = log.read_text().splitlines()[0]
        out.append((log.parent, {int(rank) for rank in re.findall(r"\d+", first)}))
    return out


def real_rows(tools: list[str]) -> list[list[str]]:
    """A row for each real record: what it is, the truth, and what each tool names."""
    rows = []
    for folder, truth in real_nccl():
        answers = {OURS: ours(folder)}
        if FIRST in tools:
            with torchfrtrace() as tool:
                answers[FIRST], answers[EVERY] = readings(_asked(tool, folder))
        if NVRX in tools:
            with nvrx() as tool:
                answers[NVRX] = missed(_asked(tool, folder))
        cells = [_told(answers[tool]) for tool in tools]
        rows.append([f"NCCL, 16 ranks, {folder.name}", str(sorted(truth)), *cells])
    return rows


def _told(answer: Answer) -> str:
    return f"error: {answer.error}" if answer.error else str(sorted(answer.accused) or "nobody")


def _asked(tool: Rival, folder: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "dumps"
        copy.mkdir()
        for path in folder.glob("_dump_*"):
            shutil.copy(path, copy / path.name.replace("_dump_", PREFIX))
        return tool.ask(copy)
