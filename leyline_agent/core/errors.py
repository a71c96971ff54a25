"""The one tree of errors, and the typed reasons for which a plan is not applied.

LeylineError
 ├─ PlanError          a plan or directive that breaks the algebra's rules
 │   └─ WireError      bytes or JSON that do not spell a plan
 ├─ PolicyError        a policy cannot be found, or returned no conversation
 ├─ SetupError         an environment, model or trace is missing or wrong
 └─ ServerError        a Leyline server cannot be started or does not answer
"""

from __future__ import annotations

from enum import StrEnum


class LeylineError(Exception):
    """Root of every error that this package raises."""


class PlanError(LeylineError, ValueError):
    """A directive or plan is malformed: out of order, overlapping, outside its base."""


class WireError(PlanError):
    """A wire text does not spell a version-1 plan."""


class PolicyError(LeylineError):
    """A policy cannot be found or did not return a conversation."""


class SetupError(LeylineError):
    """Something that has to be installed, built or given is not there."""


class ServerError(LeylineError):
    """A server does not start, stopped, or does not answer."""


class Fallback(StrEnum):
    """Why a plan was answered as a plain request. The answer itself is never lost."""

    INVALID_DIRECTIVE = "invalid_directive"
    UNKNOWN_BASE = "unknown_base"
    BASE_MISMATCH = "base_mismatch"
    RESULT_MISMATCH = "result_mismatch"
    DONOR_EVICTED = "donor_evicted"
    NO_MEMORY = "no_memory"
    UNSUPPORTED_LAYOUT = "unsupported_layout"
    UNSUPPORTED_ROPE = "unsupported_rope"
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    NOT_WORTH_IT = "not_worth_it"
    GATED_BY_CALIBRATION = "gated_by_calibration"
    INTERNAL_ERROR = "internal_error"
