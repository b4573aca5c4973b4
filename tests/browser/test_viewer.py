"""The viewer in a real browser. `make browser` runs these tests; nothing is skipped where they run."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from holdfast import Session
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message
from tests.browser.story import tell_story

CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
SCREENSHOTS = Path(os.environ.get("HOLDFAST_SCREENSHOTS", "docs/images"))
WIDTH, HEIGHT, PICTURE_HEIGHT = 1_280, 860, 1_240
PHONE = {"width": 390, "height": 844}
MAX_NODES, MAX_HEAP_BYTES = 12_000, 60_000_000
HOSTILE = "<script>document.title='PWNED'</script><img src=x onerror=\"document.title='PWNED'\">"


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=os.environ["HOLDFAST_BROWSER"], args=CHROMIUM_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viewer") / "chats.db"

    async def record() -> None:
        store = SqliteStore(path)
        await tell_story(store, "billing", turns=36, budget=6_000, name="Customers are billed twice")
        await tell_story(store, "refunds", turns=3, budget=20_000)
        await tell_story(store, "long", turns=1_500, budget=60_000)
        async with Session.open("hostile", store=store) as session:
            await session.record([user_message(HOSTILE)])
        await store.close()

    # Playwright runs a loop in this thread.
    with ThreadPoolExecutor(1) as other:
        other.submit(asyncio.run, record()).result()
    return path


@contextmanager
def running_viewer(store_path: Path, *options: str) -> Generator[str]:
    """Start `holdfast view`, and yield the address that it prints."""
    command = [Path(sys.executable).with_name("holdfast"), "view", "--store", f"sqlite:///{store_path}"]
    viewer = subprocess.Popen(
        [*command, "--port", "0", "--no-open", "--model", "gpt-5", *options], stdout=subprocess.PIPE, text=True
    )
    assert viewer.stdout is not None
    try:
        yield viewer.stdout.readline().strip()
    finally:
        viewer.terminate()
        viewer.wait(20)
        viewer.stdout.close()


@pytest.fixture(scope="session")
def site(store_path: Path, browser: Browser) -> Generator["Site"]:
    """A viewer with a browser that has signed in, and may change something."""
    with running_viewer(store_path, "--allow-changes") as url:
        context = browser.new_context()
        context.new_page().goto(url)
        yield Site(url.partition("/?")[0], browser, context.cookies())
        context.close()


class Site:
    """The pages, and browsers that are signed in to them."""

    def __init__(self, address: str, browser: Browser, cookies: list[Any]) -> None:
        self.address = address
        self._browser = browser
        self._cookies = cookies

    @contextmanager
    def opened(self, path: str, **options: Any) -> Iterator[Page]:
        """Yield a page in a context of its own, which must say nothing on its console."""
        context: BrowserContext = self._browser.new_context(
            **{"viewport": {"width": WIDTH, "height": HEIGHT}, "color_scheme": "light"} | options
        )
        context.add_cookies(self._cookies)
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{self.address}{path}")
        yield page
        assert said == []
        context.close()


def serious_violations(page: Page) -> list[str]:
    """Return what axe-core finds that keeps somebody from using a page."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"][:3]
    ]


def test_the_list_opens_with_everything_about_each_session(site: Site) -> None:
    with site.opened("/") as page:
        expect(page).to_have_title("Sessions · Holdfast")
        row = page.get_by_role("row", name=re.compile("billing – gpt-5"))
        expect(row).to_contain_text("gpt-5")
        expect(row.get_by_role("link")).to_have_attribute("href", "/s/billing")
        expect(page.get_by_role("main")).to_match_aria_snapshot("""
            - main:
              - heading "Sessions" [level=1]
              - table:
                - rowgroup:
                  - row "Session Client Model Messages Requests Context Compactions Cost Changed"
        """)


def test_a_search_leads_to_the_message_that_was_found(site: Site) -> None:
    with site.opened("/") as page:
        page.keyboard.press("/")
        page.keyboard.type("advisory_lock")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("found for “advisory_lock”")
        hit = page.get_by_role("main").get_by_role("link", name=re.compile("Customers are billed twice|advisory")).first
        address = hit.get_attribute("href")
        hit.click()
        assert address is not None
        expect(page).to_have_url(f"{site.address}{address}")
        expect(page.locator(f"#{address.partition('#')[2]}")).to_be_in_viewport()
        expect(page.locator(f"#{address.partition('#')[2]}")).to_contain_text("advisory_lock")


def test_requests_are_stepped_through_with_keys_and_with_links(site: Site) -> None:
    with site.opened("/s/billing/requests/3") as page:
        expect(page.get_by_role("status")).to_contain_text("its hash is the one on record")
        page.keyboard.press("n")
        expect(page).to_have_url(f"{site.address}/s/billing/requests/4")
        page.keyboard.press("p")
        expect(page).to_have_url(f"{site.address}/s/billing/requests/3")
        page.get_by_role("link", name="Next request").click()
        expect(page).to_have_url(f"{site.address}/s/billing/requests/4")
        expect(page.get_by_text("The cache holds.")).to_be_visible()


def test_a_request_shows_the_bytes_that_were_sent(site: Site) -> None:
    with site.opened("/s/billing/requests/3") as page:
        expect(page.get_by_text(re.compile(r"Its [\d,]+ bytes are on record"))).to_be_visible()
        page.get_by_text(re.compile(r"^Its bytes, [\d,]+$")).click()
        expect(page.get_by_label("the bytes that were sent")).to_contain_text('{"model": "gpt-5", "messages": [')
        page.get_by_role("link", name="all of them, unchanged").click()
        expect(page).to_have_url(f"{site.address}/s/billing/requests/3/body")


def test_a_request_after_a_compaction_shows_the_byte_that_broke_the_cache(site: Site) -> None:
    with site.opened("/s/billing/changes/1") as page:
        page.get_by_role("link", name=re.compile(r"request \d+")).last.click()
        expect(page.get_by_text(re.compile(r"The cache breaks at byte [\d,]+"))).to_be_visible()
        expect(page.get_by_text(re.compile(r"are sent uncached because of it, for \$[\d.]+"))).to_be_visible()
        page.evaluate("document.fonts.ready")
        page.screenshot(path=SCREENSHOTS / "viewer-request.png")


def test_a_line_of_a_summary_opens_its_source(site: Site) -> None:
    with site.opened("/s/billing/changes/1", color_scheme="dark") as page:
        line = page.locator(".summary details").first
        named = re.search(r"#(\d+)", line.locator("summary").inner_text())
        assert named
        expect(line.get_by_role("article").first).to_be_hidden()
        line.locator("summary").click()
        source = line.get_by_role("article").first
        expect(source).to_be_visible()
        expect(source).to_contain_text(f"#{named[1]}")
        page.set_viewport_size({"width": WIDTH, "height": PICTURE_HEIGHT})
        page.screenshot(path=SCREENSHOTS / "viewer-compaction.png")


def test_the_plot_leads_to_its_message(site: Site) -> None:
    with site.opened("/s/billing") as page:
        plot = page.locator("figure[data-drawn] .u-over")
        expect(plot).to_be_visible()
        page.set_viewport_size({"width": WIDTH, "height": PICTURE_HEIGHT})
        page.screenshot(path=SCREENSHOTS / "viewer-session.png")
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        box = plot.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page.locator(".plot-tip")).to_contain_text("tokens")
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(page).to_have_url(re.compile(r"/s/billing\?from=\d+#m-\d+$"))


def test_a_change_is_undone_and_redone_in_the_browser(site: Site) -> None:
    with site.opened("/s/refunds") as page:
        page.get_by_role("link", name="Compact…").click()
        text = page.get_by_role("textbox", name="What the model gets instead")
        text.fill(f"{text.input_value()}\nAdded by hand.")
        page.get_by_role("button", name="Compact with this text").click()
        expect(page.get_by_role("button", name="Undo the last change")).to_be_visible()
        card = page.get_by_role("region", name="change of context 1")
        expect(card).to_contain_text("compacted (manual)")
        page.get_by_role("button", name="Undo the last change").click()
        expect(card).to_contain_text("undone")
        page.get_by_role("button", name="Redo").click()
        expect(card).not_to_contain_text("undone")


def test_a_page_shows_new_messages_while_it_is_open(site: Site, store_path: Path) -> None:
    async def say(text: str) -> None:
        store = SqliteStore(store_path)
        async with Session.open("live", store=store) as session:
            await session.record([user_message(text)])
        await store.close()

    with ThreadPoolExecutor(1) as other:
        other.submit(asyncio.run, say("the first message")).result()
    with site.opened("/s/live") as page:
        expect(page.get_by_text("the first message").last).to_be_visible()
        with ThreadPoolExecutor(1) as other:
            other.submit(asyncio.run, say("a second one, meanwhile")).result()
        expect(page.get_by_text("a second one, meanwhile")).to_be_visible(timeout=15_000)


def test_an_export_opens_from_disk_without_a_network(browser: Browser, store_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    command = [Path(sys.executable).with_name("holdfast"), "view", "billing", "--store", f"sqlite:///{store_path}"]
    subprocess.run([*command, "--export", target], check=True, capture_output=True)
    context = browser.new_context(offline=True)
    page, asked, said = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))

    page.goto(target.as_uri())

    expect(page.locator("#m-0")).to_contain_text("Customers are billed twice when a payment is retried.")
    expect(page.locator("#m-0")).to_be_visible()
    page.locator("#change-1 > summary").click()
    expect(page.locator("#change-1 .summary")).to_be_visible()
    assert serious_violations(page) == []
    assert asked == [target.as_uri()]
    assert said == []
    context.close()


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}], ids=["light", "dark", "phone"])
@pytest.mark.parametrize(
    "path",
    ["/", "/?q=charge", "/s/billing", "/s/billing?from=60&request=20", "/s/billing/requests/40", "/s/billing/changes/2",
     "/s/billing/messages/2", "/s/billing/compact", "/s/refunds/compare"],
)  # fmt: skip
def test_nobody_is_kept_from_using_a_page(path: str, options: dict[str, Any], site: Site) -> None:
    with site.opened(path, **options) as page:
        assert serious_violations(page) == []
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 1


def test_every_page_works_without_scripts_and_the_plot_is_a_picture(site: Site) -> None:
    with site.opened("/s/billing", java_script_enabled=False) as page:
        expect(page.get_by_role("img", name=re.compile(r"Tokens of \d+ requests"))).to_be_visible()
        assert page.locator(".plot-frame").inner_text().split() == ["tokens", "6k", "3k", "0", "1", "request", "72"]
        page.get_by_role("link", name="Next").first.click()
        expect(page).to_have_url(f"{site.address}/s/billing?from=60")
        page.get_by_role("link", name="Sessions").click()
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()


def test_rows_are_walked_with_the_keyboard(site: Site) -> None:
    with site.opened("/s/billing") as page:
        page.keyboard.press("j")
        first = page.evaluate("document.activeElement.className")
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert page.evaluate("document.activeElement.className") == first
        assert first.startswith("row")
        page.keyboard.press("h")
        expect(page).to_have_url(f"{site.address}/")


def test_hostile_text_runs_nothing(site: Site) -> None:
    with site.opened("/s/hostile") as page:
        expect(page.get_by_text("document.title='PWNED'").first).to_be_visible()
        assert "PWNED" not in page.title().replace(HOSTILE[:60], "").split("·")[-1]
        assert page.locator("main img").count() == 0


def test_a_long_session_keeps_the_memory_of_its_tab_bounded(site: Site) -> None:
    with site.opened("/s/long") as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for _ in range(5):
            page.get_by_role("link", name="Next").first.click()
            page.wait_for_load_state("load")
        session.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        assert page.evaluate("document.querySelectorAll('*').length") <= MAX_NODES
        assert metrics["JSHeapUsedSize"] <= MAX_HEAP_BYTES


def test_the_address_works_once(browser: Browser, store_path: Path) -> None:
    with running_viewer(store_path) as url:
        first, second = browser.new_context(), browser.new_context()
        page, other = first.new_page(), second.new_page()
        page.goto(url)
        answer = other.goto(url)
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        assert "token" not in page.url
        assert answer is not None
        assert answer.status == 403
        first.close()
        second.close()
