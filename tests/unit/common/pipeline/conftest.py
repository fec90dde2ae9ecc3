"""Property tests do not race the clock of a busy machine, and leave nothing behind."""

from hypothesis import settings

settings.register_profile("omnistage", deadline=None, database=None, max_examples=50)
settings.load_profile("omnistage")
