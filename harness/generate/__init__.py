"""Where schedules come from."""

from harness.generate.plain import generate
from harness.generate.tour import tour
from harness.generate.vocabulary import KILL_POINTS

__all__ = ["KILL_POINTS", "generate", "tour"]
