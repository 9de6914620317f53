"""Where schedules come from."""

from harness.generate.plain import faults_of, generate
from harness.generate.tour import has_headers, introduction, tour
from harness.generate.vocabulary import KILL_POINTS, runtimes_of

__all__ = ["KILL_POINTS", "faults_of", "generate", "has_headers", "introduction", "runtimes_of", "tour"]
