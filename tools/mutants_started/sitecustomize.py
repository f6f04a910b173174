"""What Python imports first in a process that a test of a mutant starts."""

import mutant_in_place  # noqa: F401 - to import it is all
