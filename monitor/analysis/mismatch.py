"""From divergences to findings."""

from __future__ import annotations

from monitor.analysis import wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph
from monitor.analysis.sequences import Divergence


def mismatch(graph: Graph, one: Divergence) -> Finding:
    """What a divergence says."""
    index, job = graph.index, graph.index.job
    op = index.op(one.rows[0])
    what = f"collective {one.sequence} of {job.groups[one.group].label}"
    said = [
        f"{wording.ranks(job, side)} {wording.verb(side, 'calls', 'call')} {text}"
        + wording.site(index, row)
        for side, text, row in zip(one.sides[:4], one.said, one.rows, strict=False)
    ]
    if one.culprits:
        said = [f"{wording.joined(said[1:])} where {said[0]}"]
    involved = {rank for side in one.sides for rank in side}
    nodes = [
        graph.front_node(number)
        for number, stuck in enumerate(graph.stuck)
        if stuck.transfer is None and one.explains(stuck.group, stuck.sequence)
    ]
    waiting = set(graph.reaching(nodes)) | involved
    return Finding(
        kind=one.kind,
        confidence=Confidence.LIKELY if one.culprits else Confidence.UNSURE,
        reason=f"{wording.joined(said)}, in {what}: {_end(one)}",
        culprits=one.culprits,
        between=() if one.culprits else tuple(sorted(one.sides)),
        victims=tuple(sorted(waiting - set(one.culprits))) if one.culprits else (),
        group=one.group,
        sequence=one.sequence,
        op=op,
        evidence={
            wording.ranks(job, side): text + wording.site(index, row)
            for side, text, row in zip(one.sides[:8], one.said, one.rows, strict=False)
        },
    )


def _end(one: Divergence) -> str:
    does = wording.verb(one.culprits, "it does", "they do")
    match one.kind:
        case _ if not one.culprits:
            return "the records cannot tell which of them is wrong."
        case Fault.SKIPPED:
            return f"from there on {does} what the others do one call later, so one was left out."
        case Fault.EXTRA:
            return f"from there on {does} what the others do one call sooner: one call too many."
        case Fault.SILENT_MISMATCH:
            return "nothing hangs, but the numbers are wrong."
        case _ if one.live:
            return "nobody gets out."
        case _:
            return "nobody is inside any more."
