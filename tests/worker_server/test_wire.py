"""The wire: what is printed is parsed to the same, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.app import in_json
from tests.deep import DEEP
from tests.worker_server.wire_values import PARSERS, WHO, values

PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", list(PARSERS)[:-1], ids=lambda kind: kind.__name__)
@settings(max_examples=8 * DEEP)  # each draws a whole answer
@given(data=st.data())
def test_what_is_said_survives_the_wire(kind, data):
    said = data.draw(values(kind))
    assert PARSERS[kind](json.loads(json.dumps(wire.to_json(said)))) == said


@pytest.mark.parametrize("commits", [0, 3, 9])
@pytest.mark.parametrize("failures", [0, 6])
@pytest.mark.parametrize("committed_step", [None, 6, 7, 8])
def test_the_committed_step_survives_the_wire_whatever_is_left_out(
    commits, failures, committed_step
):
    step = wire.StepState(
        7, 9, 1, "data", 0.0, commits, committed_step=committed_step, commit_failures=failures
    )
    state = wire.StateReport(WHO, wire.Process(True, "S"), step)
    assert wire.parse_state(json.loads(json.dumps(wire.to_json(state)))) == state


def test_a_rank_that_tells_its_committed_step_although_it_is_the_expected_one_is_understood():
    step = wire.StepState(7, 9, 1, "data", 0.0, 8, committed_step=6)
    answer = wire.to_json(wire.StateReport(WHO, wire.Process(True, "S"), step))
    assert "committed_step" not in answer["step"]
    answer["step"]["committed_step"] = 6
    assert wire.parse_state(answer).step == step


def test_text_for_a_sentence_is_one_printable_line_of_bounded_length():
    long = "Value\x1b[31m\nError: " + 1000 * "x"
    state = wire.StateReport(WHO, wire.Process(False, None), None, ending=wire.Ending(long))
    sentence = wire.parse_state(wire.to_json(state)).ending.sentence
    assert sentence.startswith("Value [31m Error: xxx")
    assert len(sentence) == wire.LINE_MAX_CHARS


def test_what_a_newer_worker_server_calls_a_stack_is_not_known_here():
    witness = wire.Witness(wire.Frame("f", "a.py", 1), wire.Doing.LOCK, 2, 2.0, 0.1)
    plain = wire.to_json(wire.StateReport(WHO, wire.Process(True, "S"), None, witness=witness))
    plain["witness"]["doing"] = "levitates"
    assert wire.parse_state(plain).witness.doing is wire.Doing.UNKNOWN


@pytest.mark.parametrize("parse", PARSERS.values())
@given(data=PLAIN_JSON)
def test_arbitrary_json_raises_the_one_error(parse, data):
    with pytest.raises(wire.WireError):
        parse(data)


VALID = {
    wire.parse_state: wire.StateReport(
        WHO, wire.Process(True, "S"), wire.StepState(1, 1, 1, "data", 0.0, 1, seconds={"a": 1.0}),
        (wire.GroupHead("tp", 2, 1, 0, "barrier", 0.0),),
    ),
    wire.parse_flight_record: wire.FlightRecord(
        WHO, True, {"tp": (0,)}, (wire.RingEntry("tp", 1, "x", ((1,),), enter_age_s=0.0),), 0, None
    ),
    wire.parse_registration: wire.Registration(WHO, "http://h:1", 1.0),
}  # fmt: skip


def paths_of(data, path=()):
    """Where there is something to replace."""
    if not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*path, key)
        yield from paths_of(value, (*path, key))


@pytest.mark.parametrize("parse", VALID)
@given(data=st.data())
def test_a_valid_answer_with_one_part_replaced_parses_or_raises_the_one_error(parse, data):
    answer = json.loads(json.dumps(wire.to_json(VALID[parse])))
    path = data.draw(st.sampled_from(sorted(paths_of(answer), key=repr)))
    place = answer
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(PLAIN_JSON)
    with contextlib.suppress(wire.WireError):
        parse(answer)


@pytest.mark.parametrize(
    ("times", "meant"),
    [
        pytest.param(None, {}, id="a rank that does not know them"),
        pytest.param({"load": [2, 1.5, 0.5]}, {"load": wire.Took(2, 1.5, 0.5)}, id="no bytes"),
        pytest.param({"load": [2]}, {"load": wire.Took(2)}, id="how often only"),
        pytest.param(
            {"load": [2, 1.5, 0.5, 7, 3, "more"], "ride": [1, 2, 3]},
            {"load": wire.Took(2, 1.5, 0.5, 7, 3), "ride": wire.Took(1, 2.0, 3.0)},
            id="a newer rank",
        ),
    ],
)
def test_times_of_other_versions_are_read(times, meant):
    answer = wire.to_json(VALID[wire.parse_state])
    assert "times" not in answer["step"]
    answer["step"]["times"] = times
    assert wire.parse_state(answer).step.times == meant


@pytest.mark.parametrize("row", [7, []])
def test_times_that_are_none_are_refused(row):
    answer = wire.to_json(VALID[wire.parse_state])
    answer["step"]["times"] = {"load": row}
    with pytest.raises(wire.WireError):
        wire.parse_state(answer)


PRINTS = wire.Prints(4_123_456_789, 12, tuple((123_430 + 10 * n, 2**48 - 1, 0) for n in range(3)))


TIMES = {
    "staging": wire.Took(12, 1.234567, 0.123456, 12_345_678_901, 1_234_567_890),
    "load": wire.Took(1, 12.345678, 12.345678, 1_234_567_890, 1_234_567_890),
    "apply": wire.Took(1, 0.123456, 0.123456, 1_234_567_890, 1_234_567_890),
    "reconfigure": wire.Took(123, 12.345678, 0.123456),
}


@pytest.mark.parametrize(
    ("prints", "times", "room"),
    [(None, {}, 1024), (PRINTS, {}, 1152), (PRINTS, TIMES, 1408)],
    ids=["bare", "with prints", "with prints and times"],
)
@pytest.mark.parametrize(
    ("torchft", "more"),
    [
        ({}, 0),
        (
            {
                "timeouts": {"collective": 600.0, "quorum": 60.0, "commit": 60.0},
                "lighthouse": "10.0.117.12:29510",
            },
            96,
        ),
    ],
    ids=["without a Manager", "with one"],
)
@pytest.mark.parametrize("committed", [123_455, 123_456], ids=["in a step", "between two steps"])
def test_a_state_with_eight_groups_fits_into_a_kibibyte(
    committed, torchft, more, prints, times, room
):
    unfinished = committed < 123_456
    seconds = {  # a day and a half of training
        "init": 27.12345, "other": 312.12345, "data": 512.12345, "forward": 31234.12345,
        "backward": 61234.12345, "communication": 30123.12345, "optimizer": 4123.12345,
    }  # fmt: skip
    state = wire.StateReport(
        wire.Identity("pretrain", wire.GroupName("rg_12"), 3, 8, wire.Host("node-0117"), 2_000_000,
                      "0123456789"),
        wire.Process(True, "S", 40, 123_456_789_012, None, 0.1234),
        wire.StepState(
            123_456, 123_456, 9_876_543, "communication", 0.0123, committed, 1.2345,
            wire.ReplicaId("rg_12:0b6ab4a1-2a5c-4a8d-9d6c-0e6a2d3f4b5c"), 123, 16, False, False,
            2.34567, True, 123_456_789_012, seconds, committed, prints=prints,
            times=times,
        ),
        tuple(
            wire.GroupHead(f"mesh_{n}", 64, 12_345_678, int(unfinished), "all_gather", 0.12)
            for n in range(8)
        ),
        **torchft,
    )  # fmt: skip
    size = len(in_json(wire.to_json(state)).data)
    assert size <= room + more


def registration_at(url):
    said = wire.Registration(WHO, url, 15.0)
    return wire.parse_registration(json.loads(json.dumps(wire.to_json(said))))


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.7:4000", "https://node-7.rack_2.example:443", "http://[2001:db8::7]:4000",
     "http://127.0.0.1:9/", "http://pod.ns.svc", "http://3f2a9c001d7e:1", f"http://127.0.0.1:9/{WHO.rank}"],
)  # fmt: skip
def test_a_worker_server_is_registered_by_scheme_host_and_port(url):
    assert registration_at(url).url == url.removesuffix("/")


@pytest.mark.parametrize(
    "url",
    ["http://", "ftp://h:1", "http://h/x?y=", "http://h/a#", "http://h:1/v1/groups/rg_1/evict",
     "http://user:pw@h:1", "http://@h", "http://h:1?x", "http://h:nine", "http://h:70000",
     "http://h:0", "http://\0", "http://a b", "http://h\n:1", "http://a\\b", "http://a\u202eb",
     "http://169.254.169.254", "http://[fe80::1]:9", "http://[::ffff:169.254.169.254]",
     "http://0.0.0.0:80", "http://[::]:80", "http://[::ffff:0.0.0.0]:80", "http://224.0.0.1:80",
     "http://[ff02::1]:80", "http://metadata.google.internal", "http://METADATA.google.internal.",
     "http://[fd00:ec2::254]", "http://[fd00:0ec2:0::0254]", "http://100.100.100.200",
     "http://168.63.129.16", "http://[::ffff:168.63.129.16]", "http://metadata:80",
     "http://2852039166", "http://0xa9fea9fe", "http://169.254.43518", "http://[h]:1"],
    ids=ascii,
)  # fmt: skip
def test_nothing_else_is_registered(url):
    with pytest.raises(wire.WireError, match=r"'url' is .*, expected http"):
        registration_at(url)


def test_half_a_surrogate_pair_is_no_text() -> None:
    """JSON can spell one; an error that is no WireError would end who asked."""
    said = wire.to_json(wire.StateReport(WHO, wire.Process(alive=True), None, ()))
    said["identity"]["pid"] = json.loads('"\\ud800"')
    with pytest.raises(wire.WireError):
        wire.parse_state(said)
