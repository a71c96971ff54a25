"""What the server says it did with a request. Asked for afterwards, never on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from leyline_agent.core import Receipt, ServerError

PATH = "/leyline/v1/receipts/"
_TIMEOUT_S = 30.0


def receipt(
    base_url: str, completion: str, headers: Mapping[str, str] | None = None
) -> Receipt | None:
    """The receipt of a completion; None when it carried no plan or is too old.

    Args:
        base_url: the server's root, with or without /v1. headers: such as an Authorization.

    Raises:
        ServerError: nobody answers, or not with a receipt.
    """
    try:
        answer = httpx.get(_url(base_url, completion), headers=headers, timeout=_TIMEOUT_S)
        return _read(answer)
    except (httpx.HTTPError, ValueError) as error:
        raise ServerError(f"no receipt from {base_url}: {error}") from error


async def async_receipt(
    base_url: str, completion: str, headers: Mapping[str, str] | None = None
) -> Receipt | None:
    """The asyncio twin of receipt()."""
    try:
        async with httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_S) as client:
            return _read(await client.get(_url(base_url, completion)))
    except (httpx.HTTPError, ValueError) as error:
        raise ServerError(f"no receipt from {base_url}: {error}") from error


def _url(base_url: str, completion: str) -> str:
    return f"{base_url.rstrip('/').removesuffix('/v1')}{PATH}{completion}"


def _read(answer: Any) -> Receipt | None:
    if answer.status_code == 404:
        return None
    answer.raise_for_status()
    return Receipt.from_dict(answer.json())
