"""What holds for every test: how many examples a property is tried on."""

from hypothesis import settings

from tests.deep import DEEP

settings.register_profile("lightkeeper", max_examples=30 * DEEP, deadline=None)
settings.load_profile("lightkeeper")  # no deadline: a busy host is no defect of the code
