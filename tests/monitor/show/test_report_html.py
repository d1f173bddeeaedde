"""One page: well-formed, without anything from elsewhere, and safe whatever the names are."""

import re
from html.parser import HTMLParser

import pytest

from lightkeeper.monitor.records.job import Group, Problem
from lightkeeper.monitor.show.report import Report
from tests.monitor.show.jobs import PP, hang, healthy, megatron, tie

_VOID = {"meta", "!doctype"}
_KNOWN = re.compile(
    "html|head|title|style|body|header|main|footer|section|article|h[123]|p|span|b|dl|dt|dd|div|"
    "table|thead|tbody|tr|th|td|details|summary|ul|li|i|meta|figure|svg|g|path|rect|text"
)


class Tags(HTMLParser):
    """Checks that every tag is known and closed; collects attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert _KNOWN.fullmatch(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(job, analysis):
    return Report(job, analysis).page()


@pytest.mark.parametrize("make", [hang, tie, healthy, lambda: megatron(16)])
def test_the_page_is_well_formed_and_fetches_nothing(make):
    text = page_of(*make())
    tags = Tags(text)
    names = {name for name, _ in tags.attributes}
    assert not names & {"src", "href", "style"}
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in text
    assert "default-src &#x27;none&#x27;" in text


def test_the_answer_is_the_title_and_the_first_heading():
    text = page_of(*hang())
    assert "<title>lightkeeper: 1 fault found, caused by rank 1</title>" in text
    assert '<h1 class="bad">1 fault found, caused by rank 1</h1>' in text


def test_a_tie_is_not_shown_as_an_accusation():
    text = page_of(*tie())
    assert '<h1 class="doubt">' in text
    assert 'class="culprit"' not in text


def test_a_healthy_page_has_no_verdict():
    text = page_of(*healthy())
    assert "<article" not in text


def test_names_from_records_are_text_and_nothing_else():
    nasty = "\"><script>alert(1)</script><img src=x onerror=alert(2)>&\x1b\u202e'</title></style>"
    groups = (Group(nasty, nasty, (0, 1, 2, 3)), PP)
    job, analysis = hang(
        groups=groups,
        sites=(nasty, nasty),
        names={rank: f"{nasty}{rank}" for rank in range(4)},
        hosts={1: nasty},
        problems=(Problem(nasty, nasty, 1),),
    )
    finding = analysis.findings[0]
    changed = type(finding)(finding.kind, nasty, (1,), group=0, op=nasty, evidence={nasty: nasty})
    text = page_of(job, type(analysis)((changed,), analysis.waits, (nasty,)))
    tags = Tags(text)
    assert not {name for name, _ in tags.attributes} & {"src", "onerror"}
    assert not any(letter in text for letter in "\x1b\u202e")
    assert "alert(1)" in "".join(tags.text)


def test_a_thousand_ranks_make_a_small_page():
    text = page_of(*megatron(128))
    assert len(text) < 60_000
    assert "0-7, 16-1023" in text


def test_every_class_that_the_page_uses_has_a_style():
    """A renamed role or state would lose its colour without a word."""
    text = page_of(*megatron(4))
    head, body = text.split("</style>")
    used = {word for words in re.findall(r'class="([^"]+)"', body) for word in words.split()}
    plain = {"victim", "free", "waiting", "node", "cell", "culprit"}
    assert {name for name in used - plain if f".{name}" not in head} == set()
