"""Ready policies, one a file, and how to find one."""

from leyline_agent.policies.load import load, names
from leyline_agent.policies.policy import Message, Policy, apply
from leyline_agent.policies.truncate_older_than import TruncateOlderThan

__all__ = ["Message", "Policy", "TruncateOlderThan", "apply", "load", "names"]
