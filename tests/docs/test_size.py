"""Few pages and few words: who looks something up has to find it."""

from tests.docs.pages import MOST_PAGES, MOST_WORDS, manual, readmes

README_LINES = 130


def test_the_manual_has_at_most_20_pages_and_32000_words() -> None:
    pages = manual()
    assert len(pages) <= MOST_PAGES
    assert sum(page.words for page in pages) <= MOST_WORDS


def test_the_readme_is_short() -> None:
    [readme] = [page for page in readmes() if page.name == "README.md"]
    assert len(readme.text.splitlines()) <= README_LINES
