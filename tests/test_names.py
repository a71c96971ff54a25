"""The names that users import are pinned: a change here is a change for them."""

import importlib

import pytest

NAMES = {
    "leyline_agent.core": "PARAM VERSION Cost Directive EditPlan Fallback Kept LeylineError Mode "
    "PlanError PolicyError Receipt ServerError SetupError Span WireError WirePlan digest loads",
    "leyline_agent.policies": "Message Policy TruncateOlderThan apply load names",
    "leyline_agent.langchain": "LeylineMiddleware chat_model",
    "leyline_agent.planner": "Block Difference Entry Ledger Planned Planner align difference",
    "leyline_agent.transport": "CONVERSATION MODE Lowering TurnRecord async_client "
    "async_openai_client async_receipt async_transport client collect openai_client receipt "
    "transport v1",
}


@pytest.mark.parametrize("package", sorted(NAMES))
def test_exported_names_are_pinned(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(NAMES[package].split())
    assert all(hasattr(module, name) for name in module.__all__)
