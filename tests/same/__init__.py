"""What the product answers today, frozen, and compared after each move of a refactoring.

    python -m tests.same record /work/same        before
    python -m tests.same compare /work/same       after; exit 1 where anything differs

`parts` has what is asked, `product` everything of the product that has to be imported.
"""
