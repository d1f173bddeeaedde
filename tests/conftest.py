"""What holds for every test: how many examples a property is tried on."""

import os

from hypothesis import settings

DEEP = int(os.environ.get("LIGHTKEEPER_DEEP", "1"))
settings.register_profile("lightkeeper", max_examples=30 * DEEP, deadline=None)
settings.load_profile("lightkeeper")  # no deadline: a busy host is no defect of the code
