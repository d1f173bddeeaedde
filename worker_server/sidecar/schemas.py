"""The wire's types as JSON Schema (2020-12): what `worker_server.wire.to_json` makes of them."""

from __future__ import annotations

from typing import Any, Final

from worker_server import wire
from worker_server.sidecar.queries import MAX_GRACE_S

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_BOOL: Final[Schema] = {"type": "boolean"}
_WHOLE: Final[Schema] = {"type": "integer"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": "number"}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_VERSION: Final[Schema] = {"const": wire.SCHEMA}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _says(about: str, schema: Schema) -> Schema:
    return {**schema, "description": about}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(about: str, required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """A newer server may say more; what is None is left out."""
    return {
        "type": "object",
        "description": about,
        "required": list(required),
        "properties": {**required, **optional},
    }


def _row(about: str, cells: list[Schema], least: int) -> Schema:
    """A row of values; a newer server may make it longer."""
    return {"type": "array", "description": about, "prefixItems": cells, "minItems": least}


_SHAPES: Final = _list(_list(_COUNT))
_BY_PHASE: Final = _says("seconds by phase", _map(_SECONDS))

_IDENTITY: Final = _object(
    "Who a rank is; fixed for the life of its process.",
    {
        "job": _TEXT,
        "group": _says("replica group", _TEXT),
        "group_rank": _COUNT,
        "world_size": _says("ranks in the replica group", {"type": "integer", "minimum": 1}),
        "host": _TEXT,
        "pid": _WHOLE,
        "incarnation": _says("differs between any two processes of this name", _TEXT),
    },
    {
        "place": _says(
            "where a scheduler put it: slurm_job_id, slurm_step_id, pod, namespace, node ...",
            _map(_TEXT),
        ),
        "accelerators": _says("of this rank, where that is known", _COUNT),
        "launched_as": _says("where its Manager has another name for the group", _TEXT),
    },
)
_PROCESS: Final = _object(
    "The operating system's view of the rank's process.",
    {"alive": _BOOL},
    {
        "state": _says("letter of /proc/PID/stat", _TEXT),
        "threads": _COUNT,
        "rss_bytes": _COUNT,
        "dead_age_s": _SECONDS,
        "exit_code": _WHOLE,
        "exit_signal": _says("such as SIGKILL", _TEXT),
        "interpreter_age_s": _says("since a Python thread last ran", _SECONDS),
        "tracer": _object("who traces it now", {"pid": _WHOLE, "name": _TEXT}, {}),
        "cores": _says("used in the last 5 s, by all threads", _SECONDS),
        "bytes_s": _says("read and written by system calls, a second", _SECONDS),
        "starved": _says("share of 5 s in which it was ready to run and got no core", _SECONDS),
    },
)
_FRAME: Final = _object(
    "A place in a program.", {"function": _TEXT, "file": _TEXT, "line": _WHOLE}, {}
)
_WITNESS: Final = _object(
    "Where the main thread stands while the rank makes no progress, by stacks from outside.",
    {
        "frame": _FRAME,
        "doing": _says("lock, sleep, io, data, process, collective, compile, save ...", _TEXT),
        "samples": _says("in a row that found this frame", _COUNT),
        "same_s": _says("from the first of them to the last", _SECONDS),
        "age_s": _says("since the last", _SECONDS),
    },
    {},
)
_ENDING: Final = _object(
    "How a dead process ended.", {"sentence": _TEXT}, {"exception": _TEXT, "frame": _FRAME}
)
_STEP: Final = _object(
    "What the rank reports of itself. Flags with their usual value are left out.",
    {
        "step": _WHOLE,
        "attempt": _says("steps begun, retries included", _COUNT),
        "progress": _says("phase changes; unchanged means no progress", _COUNT),
        "phase": _TEXT,
        "phase_age_s": _SECONDS,
        "commits": _COUNT,
        "tokens": _WHOLE,
        "seconds": _BY_PHASE,
    },
    {
        "last_commit_age_s": _SECONDS,
        "replica_id": _TEXT,
        "quorum_id": _WHOLE,
        "participants": _COUNT,
        "healing": _BOOL,
        "errored": _BOOL,
        "loss": _NUMBER,
        "loss_finite": _BOOL,
        "committed_step": _says(
            "left out where it is to be expected, if any was committed: `step` between two "
            "attempts (attempt == commits + commit_failures), else the one before `step`",
            {"type": ["integer", "null"]},
        ),
        "commit_failures": _COUNT,
        "held_s": _says("inside of collectives, outside of phase `communication`", _SECONDS),
        "waits_in": _says("quorum, heal or commit: what the main thread waits in now", _TEXT),
        "waits_s": _SECONDS,
        "waited_s": _says("for others, in the life of the process", _SECONDS),
        "gradients_watched": _says("whether one that is not finite would be seen", _BOOL),
        "tags": _list(_TEXT),
        "counters": _map(_NUMBER),
        "source": _says("who reports the steps", _TEXT),
        "spoilt": _object(
            "the latest spell of numbers that were not finite; absent: there was none",
            {
                "first_step": _WHOLE,
                "where": _says("seen first: local, group or exchanged", _TEXT),
                "age_s": _SECONDS,
                "run": _says("attempts in a row; 0: finite again", _COUNT),
                "attempts": _COUNT,
            },
            {},
        ),
        "prints": _object(
            "fingerprints of the weights; only those of equal lanes and steps compare",
            {
                "lane": _says("what was hashed", _WHOLE),
                "lineage": _says("counts how often the weights were replaced", _COUNT),
                "rows": _says(
                    "oldest first",
                    _list(_row("[committed step, value, part]", [_WHOLE, _WHOLE, _COUNT], 3)),
                ),
            },
            {},
        ),
        "times": _says(
            "what TorchFT's parts took in the life of this process, by name (staging, load, apply, "
            "reconfigure); absent: not done",
            _map(
                _row(
                    "[count, seconds in all, seconds of the last] and, of a state, [bytes in all, "
                    "bytes of the last]",
                    [_COUNT, _SECONDS, _SECONDS, _COUNT, _COUNT],
                    3,
                )
            ),
        ),
    },
)
_HEAD: Final = _row(
    "A process group: [name, size, last sequence id entered, how many unfinished, op, age_s] and, "
    "where it is not the obvious one, the collective that holds the rank's thread. By a recorder "
    "of torch's also the last one that the device has started, and the age of that reading.",
    [_TEXT, _COUNT, _COUNT, _COUNT, _TEXT, _SECONDS, _COUNT, _COUNT, _SECONDS],
    6,
)
_STATE: Final = {
    "identity": ref("Identity"),
    "process": ref("Process"),
    "heads": _list(ref("GroupHead")),
}
_STATE_OPTIONAL: Final = {
    "step": ref("StepState"),
    "witness": _WITNESS,
    "ending": _ENDING,
    "unhooked": _says("functions that this version of TorchFT does not have", _list(_TEXT)),
}
_STEP_ROW: Final = _row(
    "An attempt that is over: [attempt, step, committed, end_age_s, duration_s, seconds by phase]",
    [_COUNT, _WHOLE, {"enum": [0, 1]}, _SECONDS, _SECONDS, _BY_PHASE],
    6,
)
_RING_ENTRY: Final = _object(
    "One collective as the rank's own ring saw it.",
    {"group": _TEXT, "seq": _COUNT, "op": _TEXT, "enter_age_s": _SECONDS},
    {
        "sizes_in": _SHAPES,
        "sizes_out": _SHAPES,
        "dtype": _TEXT,
        "reduce_op": _TEXT,
        "root": _says("root, or the peer of a point-to-point operation", _WHOLE),
        "step": _WHOLE,
        "attempt": _WHOLE,
        "nth": _says("position in this attempt of the step, from 0", _COUNT),
        "site": _says("call site, file.py:line", _TEXT),
        "exit_age_s": _says("absent while the rank is inside", _SECONDS),
        "error": _TEXT,
        "is_async": _BOOL,
        "id": _COUNT,
        "quorum": _says("of TorchFT, for which the group was configured", _WHOLE),
        "torch_ids": _list(_WHOLE),
        "recorder": _says("whose they are, of `recorders`; absent: of `torch`", _TEXT),
    },
)
_BACKEND_RECORD: Final = _object(
    "One more of torch's flight recorders.",
    {},
    {
        "record": {"type": "object"},
        "age_s": _SECONDS,
        "error": _says("why it could not be read", _TEXT),
        "only": _says("record_ids that no entry of the ring explains", _list(_WHOLE)),
    },
)
_RECORD: Final = _object(
    "The rank's ring and torch's own record.",
    {
        "schema": _VERSION,
        "identity": ref("Identity"),
        "alive": _BOOL,
        "members": _map(_list(_COUNT)),
        "ring": _says("oldest first", _list(ref("RingEntry"))),
        "dropped": _COUNT,
    },
    {
        "torch": _says("torch's fr_trace_json", {"type": "object"}),
        "torch_age_s": _SECONDS,
        "torch_error": _TEXT,
        "torch_last_age_s": _says("since the youngest entry of `torch` was made", _SECONDS),
        "torch_only": _list(_WHOLE),
        "recorders": _says("other backends' records", _map(ref("BackendRecord"))),
        "cursor": _says("RING.TORCH.MOMENT: give it back as ?since=", _TEXT),
        "sources": _map(_TEXT),
    },
)
_TRACE: Final = _object(
    "A text that the rank left.", {"text": _TEXT, "source": _TEXT}, {"age_s": _SECONDS}
)
_LAST_WORDS: Final = _object(
    "How the process ended and what it said last.",
    {
        "schema": _VERSION,
        "identity": ref("Identity"),
        "process": ref("Process"),
        "ended": _says("one sentence", _TEXT),
    },
    {
        "exception": ref("Trace"),
        "crash": ref("Trace"),
        "error_file": ref("Trace"),
        "stderr": ref("Trace"),
        "stderr_error": _TEXT,
    },
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Identity": _IDENTITY,
    "Process": _PROCESS,
    "StepState": _STEP,
    "GroupHead": _HEAD,
    "StateReport": _object(
        "Where the rank stands.", {"schema": _VERSION, **_STATE}, _STATE_OPTIONAL
    ),
    "StepRow": _STEP_ROW,
    "StepLog": _object(
        "Attempts, oldest first.",
        {
            "schema": _VERSION,
            "identity": ref("Identity"),
            "alive": _BOOL,
            "rows": _list(ref("StepRow")),
            "dropped": _says("overwritten before anybody asked", _COUNT),
        },
        {},
    ),
    "RingEntry": _RING_ENTRY,
    "FlightRecord": _RECORD,
    "BackendRecord": _BACKEND_RECORD,
    "Trace": _TRACE,
    "LastWords": _LAST_WORDS,
    "HostEntry": _object(
        "One rank of the host: its state, or why there is none.",
        {"rank": _TEXT},
        {
            "url": _TEXT,
            "error": _TEXT,
            "report": _object("its state", _STATE, _STATE_OPTIONAL),
        },
    ),
    "HostReport": _object(
        "Every rank of the host.",
        {"schema": _VERSION, "host": _TEXT, "entries": _list(ref("HostEntry"))},
        {},
    ),
    "WaitCounters": _says("torch's wait counters, by name", {"type": "object"}),
    "Profile": _says("a Chrome trace", {"type": "object"}),
    "EvictionOrder": _object(
        "Why, and how politely.",
        {"reason": _says("not empty", {"type": "string", "pattern": r"[^\s]"})},
        {
            "grace_s": _says(
                "between SIGTERM and SIGKILL",
                {"type": "number", "minimum": 0, "maximum": MAX_GRACE_S, "default": 2},
            ),
            "incarnation": _says(
                "refuse when another process bears the name by now",
                {"type": "string", "examples": ["32bfd68baf"]},
            ),
        },
    ),
    "Eviction": _object(
        "What was sent, and whether the process is gone.",
        {
            "schema": _VERSION,
            "signalled": _list({"enum": ["SIGTERM", "SIGKILL"]}),
            "gone": _BOOL,
            "started_gone": _says("processes that it had started, ended with it", _COUNT),
            "started_left": _says("those that were sent SIGKILL and are not gone yet", _COUNT),
        },
        {},
    ),
    "Error": _object("What was wrong, in one line.", {"error": _TEXT}, {}),
}
