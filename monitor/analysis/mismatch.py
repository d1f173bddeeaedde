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
    said = "; ".join(
        f"{wording.ranks(job, side)} {wording.verb(side, 'calls', 'call')} {text}"
        for side, text in zip(one.sides[:4], one.said, strict=False)
    )
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
        reason=f"In {what}, {said}: {_end(graph, one)}",
        culprits=one.culprits,
        between=() if one.culprits else tuple(sorted(one.sides)),
        victims=tuple(sorted(waiting - set(one.culprits))) if one.culprits else (),
        group=one.group,
        sequence=one.sequence,
        op=op,
        evidence={
            wording.ranks(job, side): text + (f" at {site}" if site and site not in text else "")
            for side, text, row in zip(one.sides[:8], one.said, one.rows, strict=False)
            for site in (index.site(row),)
        },
    )


def _end(graph: Graph, one: Divergence) -> str:
    who = wording.ranks(graph.index.job, one.culprits) if one.culprits else ""
    match one.kind:
        case Fault.SKIPPED:
            return (
                f"from there on {who} did what the others do one call later, so it skipped a call."
            )
        case Fault.EXTRA:
            return f"from there on {who} did what the others do one call sooner: one call too many."
        case _ if not one.culprits:
            return "the records cannot tell which of them is wrong."
        case Fault.SILENT_MISMATCH:
            return f"nothing hangs, but the numbers are wrong, and it is {who} that differs."
        case _:
            return f"it is {who} that differs from the majority."
