"""Every SGLang internal that is touched is there; and a missing one is told by name."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.server

BREAK = """
import json
import leyline_agent.server.checks as checks
from leyline_agent.server.checks import faults
{change}
print(json.dumps(faults()))
"""


def test_the_installed_sglang_fits(in_server_env: Callable[[str], Any]) -> None:
    assert in_server_env(BREAK.format(change="")) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "from sglang.srt.managers.scheduler import Scheduler\n"
            "del Scheduler.get_output_streamer_class",
            "Scheduler.get_output_streamer_class cannot be found",
        ),
        (
            "from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache\n"
            "UnifiedRadixCache.match_prefix = lambda self, key: None",
            "UnifiedRadixCache.match_prefix has no parameter ['params']",
        ),
        ("checks.version = lambda name: '0.6.0'", "sglang 0.6.0 is installed"),
        (
            "def absent(name): raise checks.PackageNotFoundError(name)\nchecks.version = absent",
            "sglang is not installed",
        ),
    ],
)
def test_a_change_in_sglang_is_named(
    in_server_env: Callable[[str], Any], change: str, told: str
) -> None:
    found = in_server_env(BREAK.format(change=change))
    assert len(found) == 1
    assert told in found[0]


def test_a_change_in_a_cpu_target_is_named(in_server_env: Callable[[str], Any]) -> None:
    code = """
import json
from leyline_agent.server import cpu
before = cpu.missing_targets()
import sglang.srt.layers.rotary_embedding.factory as factory
del factory.get_rope_cpu
print(json.dumps([before, cpu.missing_targets()]))
"""
    before, after = in_server_env(code)
    assert before == []
    assert len(after) == 1
    assert "get_rope_cpu" in after[0]
