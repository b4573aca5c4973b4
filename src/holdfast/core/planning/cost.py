"""What a request costs with a prompt cache, and when folding pays.

Providers bill the part of a prompt that they have seen before at a fraction, and some bill what is new a
little above its price, because they write it to the cache. So a shorter prompt can cost more than a
longer one: what was rewritten is new again. Prices here are relative to one input token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MILLION = 1_000_000
CENT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a provider charges, in units of one plain input token."""

    name: str
    read: float
    """For a token that the cache holds."""
    write: float
    """For a token that it does not hold yet."""
    output: float
    ttl_seconds: float | None = 300
    """How long the cache keeps a prefix that nobody asks for; None for as long as it takes."""
    dollars: float | None = None
    """What a million plain input tokens cost."""

    def dollars_to_write(self, tokens: int) -> float | None:
        """Return what tokens cost that the cache does not hold; None where nobody knows the price."""
        return None if self.dollars is None else tokens * self.write * self.dollars / MILLION


PROVIDER_PRICES: Mapping[str, Prices] = {
    prices.name: prices
    for prices in (
        Prices(name="anthropic", read=0.1, write=1.25, output=5),
        Prices(name="gpt-5", read=0.1, write=1, output=8),
        Prices(name="gpt-4o", read=0.5, write=1, output=4),
        Prices(name="deepseek", read=0.02, write=1, output=1.5, ttl_seconds=None),
        Prices(name="none", read=1, write=1, output=4, ttl_seconds=None),
    )
}


def request_cost(prices: Prices, *, cached: int, fresh: int, output: int = 0) -> float:
    """Return what one request costs: tokens the cache holds, tokens it does not, and the answer."""
    return prices.read * cached + prices.write * fresh + prices.output * output


def break_even_turns(
    prices: Prices, *, before: int, after: int, summary_input: float = 0.0, summary_output: int = 0
) -> float:
    """Return after how many turns folding `before` tokens to `after` has paid for itself.

    `summary_input` is what reading the folded part costs, in units of one input token each: the price of a
    cold read, of a cached one, or nothing for a digest. Infinite where folding saves nothing.
    """
    saved = prices.read * (before - after)
    spent = (prices.write - prices.read) * after + summary_input * before + prices.output * summary_output
    return spent / saved if saved > 0 else float("inf")


def format_dollars(dollars: float) -> str:
    """Return dollars as people write them; less than a cent to the last figure that counts."""
    return f"${dollars:.2f}" if dollars >= CENT or not dollars else f"${dollars:.6f}".rstrip("0")
