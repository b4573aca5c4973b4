"""Only the browser that was given the address sees the pages, and no other web page reaches them."""

import httpx
import pytest

from holdfast.apps.viewer.access import ViewerAccess
from holdfast.apps.viewer.app import viewer_app
from holdfast.stores.memory import MemoryStore
from tests.viewer.visiting import ADDRESS, Browser

PATHS = ["/", "/s/report", "/s/report/plot", "/s/report/requests/1", "/s/report/changes/1", "/s/report/messages/0"]


@pytest.fixture
def access() -> ViewerAccess:
    return ViewerAccess()


def client_of(store: MemoryStore, access: ViewerAccess) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(viewer_app(store, access=access)), base_url=ADDRESS)


async def test_a_token_works_once_and_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(
    store: MemoryStore, access: ViewerAccess
) -> None:
    token = access.new_token()
    async with client_of(store, access) as client:
        first = await client.get("/s/report", params={"token": token, "from": "3"})
        page = await client.get(first.headers["location"])
    async with client_of(store, access) as other:
        second = await other.get("/", params={"token": token})

    assert (first.status_code, first.headers["location"]) == (303, "/s/report?from=3")
    assert {"httponly", "samesite=strict", "path=/"} <= set(first.headers["set-cookie"].lower().split("; "))
    assert page.status_code == 200
    assert second.status_code == 403
    assert "set-cookie" not in second.headers


async def test_a_browser_that_has_signed_in_may_open_the_printed_address_again(
    store: MemoryStore, access: ViewerAccess
) -> None:
    address = f"/s/report?token={access.new_token()}"
    async with client_of(store, access) as client:
        pages = [await client.get(address, follow_redirects=True) for _ in range(2)]

    assert [page.status_code for page in pages] == [200, 200]


@pytest.mark.parametrize("path", [*PATHS, "/made/up", "/static/../app.py"])
async def test_without_the_cookie_there_is_no_page(path: str, store: MemoryStore, access: ViewerAccess) -> None:
    async with client_of(store, access) as client:
        answers = [await client.get(path), await client.get(path, params={"format": "json"})]
        answers.append(await client.get(path, params={"token": "guessed"}))

    assert [answer.status_code for answer in answers] in ([401, 401, 403], [404, 404, 404])
    assert not any("parser" in answer.text for answer in answers)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8788"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_a_foreign_host_or_web_page_is_refused(path: str, headers: dict[str, str], browser: Browser) -> None:
    answer = await browser.get(path, **headers)

    assert answer.status_code == 403
    assert "parser" not in answer.text


@pytest.mark.parametrize("path", [*PATHS, "/no/such/page", "/s/unknown"])
async def test_every_answer_forbids_scripts_of_others_and_frames(path: str, browser: Browser) -> None:
    answer = await browser.get(path)

    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/s/report", "/s/report/do/undo", "/s/report/do/delete"])
async def test_nothing_changes_unless_changes_are_allowed(
    path: str, method: str, browser: Browser, store: MemoryStore
) -> None:
    before = await store.length("report")

    answer = await browser.client.request(method, path, data={"csrf": "guessed"})

    assert answer.status_code in {403, 404, 405}
    assert await store.length("report") == before
