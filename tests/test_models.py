"""The built-in models: built once, the same everywhere, readable by transformers."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leyline_agent import launch

pytestmark = pytest.mark.server

PYTHON_SOURCE = Path(ast.__file__)


def test_launch_names_the_models_that_are_built(in_server_env: Callable[[str], Any]) -> None:
    code = "import json; from leyline_agent.server.models import names; print(json.dumps(names()))"
    assert tuple(in_server_env(code)) == launch.TINY


def test_builds_at_once_share_one_folder_and_the_next_finds_it(tmp_path: Path) -> None:
    command = [launch.find_server_python(), "-W", "ignore", "-m", "leyline_agent.server.models"]
    env = {**os.environ, "LEYLINE_CACHE": str(tmp_path), "SGLANG_PLUGINS": ""}

    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, "tiny"], stdout=pipe, stderr=pipe, text=True, env=env)

    both = [child.communicate() for child in (start(), start())]
    paths = {Path(out.strip()) for out, _ in both}
    assert len(paths) == 1
    (path,) = paths
    assert path.parent == tmp_path / "models"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no scratch folder is left"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in path.iterdir()
    }
    assert 40e6 < sum(p.stat().st_size for p in path.iterdir()) < 120e6
    out, progress = start().communicate()
    assert Path(out.strip()) == path
    assert progress == "", "nothing is built a second time"
    first = launch.model_path("tiny", command[0], lambda _line: None)
    weights = (path / "model.safetensors").read_bytes()
    assert weights == (Path(first) / "model.safetensors").read_bytes()


def test_an_unknown_model_is_refused() -> None:
    command = [launch.find_server_python(), "-m", "leyline_agent.server.models", "huge"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "tiny-qwen3" in done.stdout


@pytest.mark.parametrize("model", launch.TINY)
def test_transformers_reads_every_weight(in_server_env: Callable[[str], Any], model: str) -> None:
    found = in_server_env(f"""
import json, torch
from transformers import AutoModelForCausalLM
from leyline_agent.server.models import build
model, info = AutoModelForCausalLM.from_pretrained(
    build({model!r}), dtype=torch.float32, output_loading_info=True)
gaps = [sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]
ids = torch.arange(300, 400).unsqueeze(0)
other = ids.clone(); other[0, 0] = 999
with torch.no_grad():
    logits = [torch.log_softmax(model(x).logits[0, -1], -1) for x in (ids, other)]
print(json.dumps([gaps, (logits[0] - logits[1]).abs().max().item()]))
""")
    gaps, difference = found
    assert gaps == [[], [], []]
    assert difference > 1e-2, "the next token depends on the first one of the context"


def test_the_tokenizer_is_lossless_and_the_template_renders_tools(
    in_server_env: Callable[[str], Any],
) -> None:
    found = in_server_env(f"""
import json
from transformers import AutoTokenizer
from leyline_agent.server.models import build
tokenizer = AutoTokenizer.from_pretrained(build("tiny"))
text = open({str(PYTHON_SOURCE)!r}).read() + "\\u2603 \\t\\r\\n<|im_start|>"
ids = tokenizer.encode(text)
call = {{"id": "c1", "type": "function", "function": {{"name": "cat", "arguments": {{"p": "a"}}}}}}
chat = [{{"role": "system", "content": "be brief"}}, {{"role": "user", "content": "go"}},
        {{"role": "assistant", "content": "", "tool_calls": [call]}},
        {{"role": "tool", "tool_call_id": "c1", "content": "seen"}}]
tools = [{{"type": "function", "function": {{"name": "cat", "parameters": {{}}}}}}]
shown = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
print(json.dumps([tokenizer.decode(ids) == text, len(text) / len(ids), shown]))
""")
    lossless, characters_a_token, shown = found
    assert lossless
    assert characters_a_token > 2.5
    for part in ("be brief", "<tools>", '"name": "cat"', "<tool_response>\nseen\n</tool_response>"):
        assert part in shown
    assert shown.endswith("<|im_start|>assistant\n")
