"""`python -m experiments.weeks --help`."""

from experiments.weeks.weeks import main

raise SystemExit(main())
