"""The page ``/live`` in headless Chromium, beside a real gateway and real workers."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from redis import Redis
from support.accessible import LOOKS, PROBLEMS, focused_by_tab, looking_like, picture
from support.browser import ABSENT, Page, open_browser
from support.eventually import wait_until
from support.operated import APP
from support.processes import COMMAND
from support.stage import FIRST_WORDS, Stage

from antiphon_gateway.access.caller import hash_of, new_key

pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make setup")
pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(bool(ABSENT), reason=ABSENT),
    pytest.mark.xdist_group("browser"),
]

HOSTILE = '"><img src=x onerror="window.harmed=1"><script>window.harmed=1</script>&lt;b&gt;'

BEFORE_AND_AFTER_READING = """
return (async () => {
const { Overview } = await import("/live/overview.js");
const overview = new Overview();
const says = () => overview.workers.node.innerText.includes("No worker is alive");
const before = says();
await overview.refresh([], {});
return [before, says()];
})()
"""


READ_ABOUT = """
return performance.getEntriesByType("resource").map((one) => one.name).filter((one) => one.includes(arguments[0]))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


class Operation:
    """A gateway with its workers, and the page that shows them."""

    def __init__(self, redis_url, processes, directory, browser) -> None:
        self.stage = Stage(directory / "stage")
        self._redis_url, self._processes = redis_url, processes
        self.gateway, self.url = self.start_gateway()
        self.page = Page(browser, self.url)
        self.key: str | None = None

    def start_gateway(self, *flags: str, port: str = "0") -> tuple[Any, str]:
        argv = ("serve", "--redis-url", self._redis_url, "--port", port, *flags)
        gateway = self._processes.start(COMMAND, *argv, name="serve")
        return gateway, gateway.wait_for_output("[serving] ").rpartition("[serving] ")[2].split()[0]

    def start_worker(self, **env: str) -> Any:
        worker = self._processes.worker(
            self._redis_url, "--app", APP, "--lease", "2", env=self.stage.env | env
        )
        worker.wait_for_output("takes turns")
        return worker

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        with httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30) as http:
            answer = http.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def submit(self, session: str, text: str, **options: Any) -> str:
        return self.call(
            "POST", f"/sessions/{session}/turns", {"input": text, "agent": "support", **options}
        )["turn_id"]

    def submit_and_wait(self, session: str, text: str) -> str:
        turn = self.submit(session, text)
        self.call("GET", f"/turns/{turn}/result?wait=30")
        return turn


@pytest.fixture
def operation(redis_url, processes, tmp_path, browser) -> Iterator[Operation]:
    found = Operation(redis_url, processes, tmp_path, browser)
    yield found
    harmed, wrong = found.page.run("return window.harmed"), found.page.wrong()
    found.page.leave()  # before its gateway ends
    assert (harmed, wrong) == (None, [])


@pytest.mark.main_path
def test_an_answer_is_seen_as_it_comes_and_after_a_reload_in_its_middle(operation):
    page, stage = operation.page, operation.stage
    worker = operation.start_worker()
    operation.submit_and_wait("s", "Hello")
    question = "gate:g words:3 gate:h Tell me more"
    page.open("#/sessions/s")
    page.shows_turns(("Hello", FIRST_WORDS, "finished"))
    page.write(question)
    page.shows_turns(("Hello", FIRST_WORDS, "finished"), (question, FIRST_WORDS.strip(), "running"))
    page.shows("#connection", "Live")
    page.driver.refresh()
    page.shows_turns(("Hello", FIRST_WORDS, "finished"), (question, FIRST_WORDS.strip(), "running"))
    page.shows("#list", "s\nRunning")
    stage.open("g")
    page.shows("article:last-child .said", "0 1 2")
    worker.kill()
    operation.start_worker()
    page.shows("article:last-child footer", "attempt 2")
    stage.open("h")
    page.shows_turns(
        ("Hello", FIRST_WORDS, "finished"), (question, FIRST_WORDS + "I was shown 3", "finished")
    )
    assert page.text("article:last-child .said").count(FIRST_WORDS.strip()) == 1
    page.shows("article:last-child footer", "1 in, 1 out", "stage-1")


def test_an_overview_that_has_read_nothing_yet_does_not_say_that_there_is_nothing(operation):
    operation.page.open()
    operation.page.shows("#overview", "No worker is alive")
    assert operation.page.run(BEFORE_AND_AFTER_READING) == [False, True]


def test_stop_keeps_what_was_said_and_a_turn_that_waits_can_be_cancelled(operation):
    page = operation.page
    operation.start_worker()
    page.open()
    page.press("New session")
    for field, text in (
        ("#begin-id", "new"),
        ("#begin-agent", "support"),
        ("#begin-text", "gate:g All of it"),
    ):
        page.find(field).send_keys(text)
    page.press("Begin")
    page.shows_turns(("gate:g All of it", FIRST_WORDS.strip(), "running"))
    page.write("And this")
    page.shows_turns(("gate:g All of it", FIRST_WORDS.strip(), "running"), ("And this", "", "waiting"))
    page.press("Cancel")
    page.shows_turns(("gate:g All of it", FIRST_WORDS.strip(), "running"), ("And this", "", "cancelled"))
    page.press("Stop")
    page.shows_turns(("gate:g All of it", FIRST_WORDS.strip(), "cancelled"), ("And this", "", "cancelled"))
    page.shows("article:first-child .mark", "Stopped: stopped by an operator.")
    page.driver.refresh()
    page.shows("article:first-child", FIRST_WORDS.strip(), "Stopped")
    assert not page.find("#stop").is_displayed()


def test_a_message_beside_a_turn_waits_joins_interrupts_or_replaces_it_as_its_author_chooses(operation):
    page, stage = operation.page, operation.stage
    operation.start_worker()
    operation.submit_and_wait("s", "Hello")
    page.open("#/sessions/s")
    page.shows_turns(("Hello", FIRST_WORDS, "finished"))
    assert not page.find("#if-busy").is_displayed()
    page.write("gate:g One")
    page.shows_turns(("Hello", "", "finished"), ("gate:g One", FIRST_WORDS.strip(), "running"))
    page.shows("#busy-row", "A turn is open. Your message")
    choose(page, "interrupt")
    page.write("gate:h Two")
    page.shows_turns(
        ("Hello", "", "finished"),
        ("gate:g One", FIRST_WORDS.strip(), "cancelled"),
        ("gate:h Two", FIRST_WORDS.strip(), "running"),
    )
    assert page.find("#if-busy").get_property("value") == "enqueue"  # a choice is for one message
    choose(page, "rollback")
    page.write("tool:survey Three")
    page.shows(".call", "RUNS", "half of the shelves")
    page.shows("article:nth-of-type(3) .mark", "Nothing of it stays in the history.")
    choose(page, "steer")
    page.write("Four")
    page.shows("article:last-child .asked", "Four")
    choose(page, "interrupt")
    page.find("#if-busy").click()
    stage.open("tool")
    page.shows("article:last-child .mark", "The turn that ran took this message.")
    page.shows("article:nth-of-type(4) .said", "I was shown")
    wait_until(lambda: not page.find("#if-busy").is_displayed(), 20, "no turn is left")
    assert page.run("return document.activeElement.id") == "text"
    assert page.find("#if-busy").get_property("value") == "enqueue"
    said = [part["text"] for part in _parts(operation.call("GET", "/sessions/s/messages")) if "text" in part]
    assert [one for one in said if one.startswith(("gate", "tool", "Four"))] == [
        "gate:g One",
        "tool:survey Three",
        "Four",
    ]


def choose(page: Page, value: str) -> None:
    page.find(f"#if-busy option[value={value}]").click()


def test_a_tool_shows_how_far_it_is_and_waits_for_an_approval(operation):
    page, stage = operation.page, operation.stage
    operation.start_worker()
    operation.submit("s", "tool:survey tool:refund tool:refund Please")
    page.open("#/sessions/s")
    page.shows(".call", "RUNS", "survey", "half of the shelves")
    assert page.run("return document.querySelector('progress').value") == 0.5
    stage.open("tool")
    page.shows(".call:nth-of-type(2)", "WAITS", "refund waits for your approval.")
    page.shows("article footer", "Suspended")
    page.shows("#list", "Suspended")
    page.driver.refresh()
    page.shows(".call:nth-of-type(2)", "refund waits for your approval.")
    page.click(".change summary")
    page.find(".change textarea").clear()
    page.find(".change textarea").send_keys('{"text": "less"}')
    page.press("Approve")
    page.shows(".call:nth-of-type(2)", "DONE", "Approved with other arguments by this machine")
    page.shows(".call:nth-of-type(3)", "refund waits for your approval.")
    page.find(".decide input[type=text]").send_keys("Too much.")
    page.press("Reject")
    page.shows(".call:nth-of-type(3)", "Rejected by this machine", "Too much.")
    page.shows_turns(("tool:survey tool:refund tool:refund Please", FIRST_WORDS, "finished"))
    results = [
        one.get("content")
        for one in _parts(operation.call("GET", "/sessions/s/messages"))
        if one["type"] == "tool_result"
    ]
    assert results[1].endswith("refunded less")


def _parts(page: Any) -> list[Any]:
    return [part for message in page["messages"] for part in message["parts"]]


def test_a_turn_shows_each_step_as_the_model_received_it_or_that_it_is_not_kept(operation):
    page, stage = operation.page, operation.stage
    stage.open("tool")
    worker = operation.start_worker()
    operation.submit_and_wait("s", "Hello")
    worker.terminate()
    operation.start_worker(KEEP_REQUESTS="1")
    operation.submit_and_wait("s", f"tool:survey {HOSTILE}")
    page.open("#/sessions/s")
    page.shows("article:last-child footer", "2 steps")
    assert page.run(READ_ABOUT, "requests") == []
    page.run("document.querySelector('article:first-child .received').open = true")
    page.shows("article:first-child .requests", "The requests of this turn are not kept")
    page.run("document.querySelector('article:last-child .received').open = true")
    page.shows("article:last-child .requests", "Step 1", "Step 2", "stage/stage-1", "bytes")
    page.run("document.querySelectorAll('.requests details')[1].open = true")
    shown = page.shows("article:last-child .requests pre", HOSTILE.replace('"', '\\"'), "surveyed", '"tools"')
    assert json.loads(shown.strip())["model"] == "stage-1"


def test_variants_of_a_turn_are_started_and_shown_beside_it(operation):
    page, stage = operation.page, operation.stage
    stage.open("tool")
    operation.start_worker()
    operation.submit_and_wait("s", f"tool:survey {HOSTILE}")
    [agent] = operation.call("GET", "/agents")["agents"]
    page.open("#/sessions/s")
    page.shows("article footer", "2 steps")
    assert page.run(READ_ABOUT, "variants") == []
    page.run("document.querySelector('article .again').open = true")
    page.shows(".variants", "Run this turn again", "Recorded", "survey(")
    page.find(".variants input").send_keys("support@nothing\n")
    page.shows("#notices", "No worker has support@nothing now")
    page.find(".variants input").clear()
    page.find(".variants input").send_keys(f"support@{agent['revision']}\n")
    page.shows(
        ".sides section:nth-child(2)", f"support@{agent['revision']}", "no difference", "2 calls", "survey("
    )
    page.find(".variants input:nth-of-type(2)").send_keys("stage-2\n")
    page.shows(".sides section:nth-child(3)", "stage-2", "2 calls")
    assert page.run(PROBLEMS) == []
    assert [one for one in page.wrong() if "/variants" not in one] == []


def test_the_sub_agents_of_a_turn_are_shown_while_they_run(operation):
    page, stage = operation.page, operation.stage
    operation.start_worker(SUB_AGENTS="1")
    operation.submit_and_wait("s", "Hello")
    operation.submit("s", "tool:understudy gate:g Look it up")
    page.open("#/sessions/s")
    page.shows("article:last-child", "understudy: began")
    assert page.run(READ_ABOUT, "tree.js") == []
    assert page.run("return document.querySelector('article:first-child .below').hidden") is True
    page.run("document.querySelector('article:last-child .below').open = true")
    page.shows(".tree", "1 sub-agent", "understudy", "Running")
    assert page.run(PROBLEMS) == []
    stage.open("g")
    page.shows(".tree", "understudy", "Finished", "tokens")
    page.click(".tree a")
    page.shows("#turns", "gate:g Look it up")
    assert page.run("return location.hash").startswith("#/sessions/child-")
    page.open("#/sessions/s")
    page.shows("article:last-child .below", "Sub-agents")


def test_a_failed_turn_is_requeued(operation):
    page = operation.page
    operation.start_worker()
    operation.submit("s", "fail:rejected*1 Please")
    page.open("#/sessions/s")
    page.shows_turns(("fail:rejected*1 Please", "", "failed"))
    page.shows(".mark", "The stage refuses", "provider_rejected")
    page.shows("#list", "Failed")
    page.press("Requeue")
    page.shows_turns(("fail:rejected*1 Please", FIRST_WORDS + "I was shown 1", "finished"))


@pytest.mark.main_path
def test_what_users_and_models_write_is_shown_as_text_and_does_nothing(operation):
    page = operation.page
    operation.start_worker()
    name = f"s {HOSTILE}"[:200]
    path = quote(name, safe="")
    operation.call("POST", "/sessions", {
        "session_id": name, "tenant": "acme", "metadata": {"title": f"title {HOSTILE}"},
        "messages": [
            {"role": "user", "parts": [{"type": "text", "text": HOSTILE}]},
            {"role": "assistant", "parts": [
                {"type": "reasoning", "text": HOSTILE},
                {"type": "text", "text": f"```html\n{HOSTILE}\n```\n[a](javascript:window.harmed=1)"},
                {"type": "tool_call", "call_id": HOSTILE, "name": HOSTILE, "arguments": {HOSTILE: HOSTILE}},
                {"type": "image", "url": f"https://{HOSTILE}"},
            ]},
            {"role": "tool", "parts": [{"type": "tool_result", "call_id": HOSTILE, "content": HOSTILE}]},
        ],
    })  # fmt: skip
    operation.call("POST", f"/sessions/{path}/turns", {"input": f"tool:refund {HOSTILE}", "agent": "support"})
    page.open()
    page.shows("#list", f"title {HOSTILE}")
    page.open(f"#/sessions/{path}")
    page.shows("#session-name", name)
    page.shows("#turns", HOSTILE, "refund waits for your approval.")
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.text("#turns").count(HOSTILE) >= 5
    assert page.run("return document.querySelectorAll('#turns img, #turns script, #list img').length") == 0
    page.press("Approve")
    page.shows_turns(*[(one[0], one[1], "finished") for one in page.turns()])


def test_a_page_that_is_cut_off_says_so_and_goes_on_where_it_was(operation):
    page, stage = operation.page, operation.stage
    operation.start_worker()
    operation.submit("s", "gate:g words:20 gate:h On")
    page.open("#/sessions/s")
    page.shows_turns(("gate:g words:20 gate:h On", FIRST_WORDS.strip(), "running"))
    operation.gateway.kill()
    page.shows("#connection", "Cut off")
    stage.open("g")
    page.find("#text").send_keys("Meanwhile\n")
    page.shows("#notices", "cannot be reached.")
    operation.start_gateway(port=operation.url.rpartition(":")[2])
    page.shows("#connection", "Live")
    page.shows("article .said", FIRST_WORDS + " ".join(map(str, range(20))))
    page.find("#text").send_keys("\n")  # what was written is still there, and the same message counts once
    page.shows("article:last-child", "Meanwhile")
    stage.open("h")
    page.shows_turns(
        ("gate:g words:20 gate:h On", FIRST_WORDS, "finished"),
        ("Meanwhile", FIRST_WORDS + "I was shown 3", "finished"),
    )
    refused = [
        one
        for one in page.wrong()
        if "ERR_CONNECTION_REFUSED" not in one and "ERR_INCOMPLETE_CHUNKED" not in one
    ]
    assert refused == []


def test_tabs_and_visits_leave_connections_for_others(operation):
    """Browsers have six for one server: the tabs that are not seen hold none, and go on when they are seen again."""
    page = operation.page
    worker = operation.start_worker()
    operation.submit_and_wait("s", "Hello")
    page.driver.set_page_load_timeout(60)
    tabs = [page.driver.current_window_handle]
    try:
        for _ in range(4):
            for _ in range(2):
                page.open("#/sessions/s")
                page.shows_turns(("Hello", FIRST_WORDS, "finished"))
                page.shows("#connection", "Live")
            page.driver.switch_to.new_window("tab")
            tabs.append(page.driver.current_window_handle)
        operation.submit_and_wait("s", "And then?")
        worker.terminate()
        for tab in tabs[:-1]:
            page.driver.switch_to.window(tab)
            page.shows_turns(("Hello", FIRST_WORDS, "finished"), ("And then?", FIRST_WORDS, "finished"))
            page.shows("#connection", "Live")
    finally:
        for tab in tabs[1:]:
            page.driver.switch_to.window(tab)
            page.driver.close()
        page.driver.switch_to.window(tabs[0])
        page.driver.set_page_load_timeout(300)


@pytest.mark.short
def test_it_fits_a_phone_and_is_used_by_keyboard_alone_in_the_dark(operation):
    page = operation.page
    operation.start_worker()
    for name in ("one", "two", "three"):
        operation.submit_and_wait(name, "Hello")
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True},
    )
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        page.open()
        page.shows("#list", "one", "two", "three")
        assert (
            page.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 21, 26)"
        )
        focused = "return document.activeElement.innerText || document.activeElement.id"
        keys = {"tab": "\ue004", "back": "\ue008\ue004", "down": "\ue015", "enter": "\ue007"}

        def press(*names: str) -> str:
            for one in names:
                page.driver.switch_to.active_element.send_keys(keys[one])
            return page.run(focused)

        seen = [press("tab") for _ in range(12)]
        assert "search" in seen
        page.find("#search").send_keys("tw")
        assert press("down").startswith("two")
        press("enter")
        page.shows_turns(("Hello", FIRST_WORDS, "finished"))
        assert page.run("return document.documentElement.scrollWidth") <= 360
        assert not page.find("#sessions").is_displayed()
        assert {"text", "Send"} <= {press("tab") for _ in range(12)}
        page.write("gate:g Go on")
        page.shows("article:last-child", FIRST_WORDS.strip())
        wait_until(lambda: page.find("#if-busy").is_displayed(), 20, "a message may interrupt the turn")
        page.find("#text").send_keys("Stop that")
        press("back", "down", "down")
        assert page.run("return document.activeElement.value") == "interrupt"
        assert page.run("return document.documentElement.scrollWidth") <= 360
        assert page.run(NAMELESS) == []
        press("tab", "enter")
        page.shows_turns(
            ("Hello", FIRST_WORDS, "finished"),
            ("gate:g Go on", FIRST_WORDS.strip(), "cancelled"),
            ("Stop that", FIRST_WORDS, "finished"),
        )
        page.press("Back to the sessions")
        page.shows("#list", "two")
        operation.submit_and_wait("table", f"|a|\n|-|\n|{'wide' * 40}|")
        page.open("#/sessions/table")
        page.shows(".message table", "wide")
        assert page.run("return scroller.scrollWidth - scroller.clientWidth") == 0
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_gateway_with_keys_asks_for_one_and_keeps_it_out_of_the_address(operation, tmp_path):
    page = operation.page
    operation.key = new_key()
    (tmp_path / "keys.toml").write_text(f'[keys.shop]\nhash = "{hash_of(operation.key)}"\ntenant = "acme"\n')
    gateway, operation.url = operation.start_gateway("--keys", str(tmp_path / "keys.toml"))
    page.url = operation.url
    operation.start_worker()
    operation.submit("mine", "Hello")
    page.open("#/sessions/mine")
    page.shows("#sign-in[open]", "This gateway needs a key")
    page.find("#key").send_keys(operation.key + "\n")
    page.shows_turns(("Hello", FIRST_WORDS, "finished"))
    assert operation.key not in page.driver.current_url
    assert operation.key not in gateway.output
    assert page.run(
        "return [Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
    ) == [[operation.key], [], ""]
    page.press("Forget the key")
    page.shows("#sign-in[open]", "This gateway needs a key")
    assert page.run("return Object.values(sessionStorage)") == []
    assert [one for one in page.wrong() if "401" not in one] == []


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_the_page_of_a_tenant_shows_nothing_of_a_later_session(operation, tmp_path, redis_url, how):
    page, shown, later = operation.page, new_key(), new_key()
    (tmp_path / "keys.toml").write_text(
        "".join(
            f'[keys.{tenant}]\nhash = "{hash_of(key)}"\ntenant = "{tenant}"\nrights = ["read", "write", "admin"]\n'
            for tenant, key in (("b", shown), ("a", later))
        )
    )
    _, operation.url = operation.start_gateway("--keys", str(tmp_path / "keys.toml"))
    page.url, operation.key = operation.url, shown
    operation.start_worker()
    operation.submit_and_wait("user-123", "Hello")
    page.open("#/sessions/user-123")
    page.shows("#sign-in[open]", "This gateway needs a key")
    page.find("#key").send_keys(shown + "\n")
    page.shows_turns(("Hello", FIRST_WORDS, "finished"))
    page.shows("#connection", "Live")
    if how == "deleted":
        operation.call("DELETE", "/sessions/user-123")
    else:
        with Redis.from_url(redis_url) as redis:
            redis.delete("ant:history:user-123", "ant:events:user-123", "ant:turns:user-123")
            redis.pexpire("ant:session:user-123", 60_000)
    operation.key = later
    operation.submit_and_wait("user-123", "secret")
    page.shows("#notices", "does not belong to the tenant")
    assert "secret" not in page.run("return document.documentElement.outerHTML")
    assert [one for one in page.wrong() if "401" not in one and "403" not in one] == []


def test_a_long_session_is_read_in_pages_and_many_events_do_not_hold_the_page_up(operation):
    page = operation.page
    messages = [
        {"role": "user" if n % 2 == 0 else "assistant", "parts": [{"type": "text", "text": f"message {n}"}]}
        for n in range(10_000)
    ]
    for start in range(0, len(messages), 1000):
        operation.call("POST", "/sessions/long/messages", {"messages": messages[start : start + 1000]})
    operation.start_worker()
    page.open("#/sessions/long")
    page.shows("#turns", "message 9999")
    assert len(page.turns()) == 60
    page.run("document.querySelector('#scroller').scrollTop = 0")
    wait_until(lambda: len(page.turns()) == 120, 20, "the page before is there")
    page.press("Jump to the latest")
    page.run(LONGEST_FRAME)
    page.write("words:200 Go on")
    page.shows("article:last-child .said", "I was shown 10001 messages")
    assert page.run("return window.longest") < 1000


# What can be used and has no name that a screen reader could say.
NAMELESS = """
return [...document.querySelectorAll("button, a, input, textarea, select")]
  .filter((one) => one.checkVisibility() && !(one.innerText || one.ariaLabel || one.labels?.length))
  .map((one) => one.outerHTML)
"""
LONGEST_FRAME = """
let last = performance.now();
window.longest = 0;
(function frame(now) {
  window.longest = Math.max(window.longest, now - last);
  last = now;
  requestAnimationFrame(frame);
})(last);
"""


MARKDOWN = """# Your order

Some **bold**, *slanted* and `code`, a [link](https://example.com/a?b=1) and https://example.org/plain.

- one
  - inner
- two

1. first
2. second

> quoted

| item | price |
|---|--:|
| tea | **3** |

```python
print("<b>")
```

---
![tracking](https://example.net/pixel.png) <img src=x onerror="window.harmed=1"> [bad](javascript:window.harmed=1)
[worse](JaVaScRiPt:window.harmed=1) [data](data:text/html,x) [here](/live) <script>window.harmed=1</script>"""

SHAPE = """
const said = document.querySelector(".said .prose");
return {
  kinds: [...said.children].map((one) => one.tagName),
  inside: [...said.querySelectorAll("strong, em, code, li, th, td, a")]
    .map((one) => one.tagName + " " + one.textContent),
  links: [...said.querySelectorAll("a")].map((one) => [one.href, one.rel, one.target]),
  others: said.querySelectorAll("img, script, iframe, object, form, style").length,
};
"""


def test_markdown_becomes_elements_without_html_pictures_or_links_that_run_code(operation):
    page = operation.page
    messages = [
        {"role": "user", "parts": [{"type": "text", "text": "**Me**"}]},
        {"role": "assistant", "parts": [{"type": "text", "text": MARKDOWN}]},
    ]
    operation.call("POST", "/sessions", {"session_id": "s", "messages": messages})
    page.open("#/sessions/s")
    page.shows(".message", "Me")
    page.shows(".said", "Your order", "<script>")
    found = page.run(SHAPE)
    assert found["kinds"] == ["P", "P", "UL", "OL", "BLOCKQUOTE", "DIV", "PRE", "HR", "P"]
    for one in ("STRONG bold", "EM slanted", "CODE code", "LI inner", "TH item", "TD tea", "STRONG 3"):
        assert one in found["inside"], one
    safe = ["noopener noreferrer nofollow", "_blank"]
    assert found["links"] == [
        ["https://example.com/a?b=1", *safe], ["https://example.org/plain", *safe],
        ["https://example.net/pixel.png", *safe],
    ]  # fmt: skip
    assert found["others"] == 0
    assert page.run("return [window.harmed, document.querySelector('.message strong').textContent]") == [
        None,
        "Me",
    ]
    assert page.run(
        "return performance.getEntriesByType('resource').every((one) => one.name.startsWith(origin))"
    )


# Markdown that grows by single characters must end as it does when it comes at once.
GROWING = """
return (async (text) => {
  const { Prose } = await import("/live/showing/prose.js");
  const whole = new Prose(), grown = new Prose();
  whole.update(text);
  for (let end = 1; end <= text.length; end += 1) grown.update(text.slice(0, end));
  return [whole.node.outerHTML, grown.node.outerHTML];
})(arguments[0])
"""
# What takes a regular expression long that is not careful.
HARMFUL = """
return (async () => {
  const { Prose } = await import("/live/showing/prose.js");
  const texts = ["[", "`a", " *a", "**a ", " _a", "~~a", "![[*_`~~", "https://", ">", "- ", "|", "\\\\", "[a](", "1. "]
    .map((one) => one.repeat(Math.ceil(19_000 / one.length)));
  texts.push("- a\\n".repeat(50_000), "a | b\\n- | -\\n" + "| x\\n".repeat(50_000));
  texts.push("> ".repeat(5_000) + "\\n- ".repeat(5_000), "<https://".repeat(2_000));
  return texts.map((text) => {
    const began = performance.now();
    new Prose().update(text);
    return [text.slice(0, 8), performance.now() - began];
  });
})()
"""


def test_markdown_is_the_same_however_it_arrives_and_no_text_stops_the_page(operation):
    operation.page.open()
    whole, grown = operation.page.run(GROWING, MARKDOWN)
    assert grown == whole
    slow = [one for one in operation.page.run(HARMFUL) if one[1] > 3000]
    assert slow == []


def test_the_search_and_the_counts_are_of_all_sessions_and_not_of_those_that_were_read(operation):
    page = operation.page
    operation.call(
        "POST", "/sessions", {"session_id": "first", "tenant": "acme", "metadata": {"title": "Needle"}}
    )
    for number in range(60):
        operation.call("POST", "/sessions", {"session_id": f"hay-{number}"})
    page.open()
    page.shows("#filters", "All 61", "Running 0", "Suspended 0", "Failed 0")
    assert "Needle" not in page.text("#list")
    page.find("#search").send_keys("needle")
    page.shows("#list", "Needle", "acme")
    assert page.run("return document.querySelectorAll('#list li').length") == 1
    page.find("#search").clear()
    page.find("#search").send_keys("hay-5")
    wait_until(
        lambda: page.run("return document.querySelectorAll('#list li').length") == 11, 20, "hay-5, hay-50 …"
    )
    page.find("#search").clear()
    page.find("#search").send_keys("no such")
    page.shows("#list-note", "No session has “no such”")
    page.press("Running 0")
    page.find("#search").clear()
    page.find("#search").send_keys(" ")
    page.shows("#list-note", "None of these.")


@pytest.fixture
def searching(operation, redis_url, processes, tmp_path) -> Operation:
    """An operation whose workers index what is said."""
    archive = f"sqlite:///{tmp_path}/archive.db"
    operation.gateway.kill()
    operation.gateway, url = operation.start_gateway("--archive", archive)
    operation.url = operation.page.url = url
    worker = processes.worker(
        redis_url, "--app", APP, env={**operation.stage.env, "ANTIPHON_ARCHIVE": archive}
    )
    worker.wait_for_output("takes turns")
    return operation


def test_the_search_finds_messages_with_the_keyboard_alone_on_each_screen(searching):
    operation, page = searching, searching.page
    operation.call("POST", "/sessions", {"session_id": "first", "metadata": {"title": "A trip"}})
    for session in ("first", "second"):
        operation.submit(session, f"Kyoto {HOSTILE} in May", tenant="acme" if session == "second" else None)
    wait_until(lambda: len(operation.call("GET", "/search?text=kyoto")["hits"]) == 2, 20, "both are indexed")
    for width, height, scheme in LOOKS:
        with looking_like(page.driver, width, height, scheme):
            page.open()
            page.shows("#filters", "All 2")
            assert not page.find("#found").is_displayed()
            page.find("#search").send_keys("kyot")
            page.shows("#list-note", "No session has “kyot”")
            page.shows("#found", "In messages", "A trip", "second", HOSTILE[:20], "acme · support")
            assert page.run(
                "return [...document.querySelectorAll('#hits mark')].map((one) => one.innerText)"
            )[0] == ("Kyoto")
            picture(page, f"live-search-{width}-{scheme}")
            assert page.run(PROBLEMS) == [], (width, scheme)
            page.driver.switch_to.active_element.send_keys("\ue015")
            page.driver.switch_to.active_element.send_keys("\ue010")
            chosen = page.run("return document.activeElement.title")
            page.driver.switch_to.active_element.send_keys("\ue007")
            page.shows("#session-name", chosen)
            page.shows("#turns", "Kyoto")
    page.open()
    page.find("#search").send_keys("osaka")
    page.shows("#found", "No message has “osaka”.")
    page.find("#search").send_keys("\ue009a\ue000!")
    wait_until(lambda: not page.find("#found").is_displayed(), 20, "a sign is no word")


def test_a_deployment_without_a_search_says_so_and_is_never_asked(operation):
    page = operation.page
    operation.call("POST", "/sessions", {"session_id": "s"})
    page.open()
    page.shows("#filters", "All 1")
    for text in ("kyoto", "osaka"):
        page.find("#search").clear()
        page.find("#search").send_keys(text)
        page.shows("#list-note", f"No session has “{text}”")
        page.shows("#found", "Messages are not searched: that needs workers")
    asked = (
        "return performance.getEntriesByType('resource').filter((one) => one.name.includes('/search')).length"
    )
    assert page.run(asked) == 0


def test_all_failed_turns_are_requeued_once_they_are_confirmed_and_only_those_of_the_filter(operation):
    page = operation.page
    operation.start_worker()
    for session, text in (
        ("a", "fail:rejected*1 One"),
        ("b", "fail:rejected*1 Two"),
        ("c", "fail:unauthorized*1 Three"),
    ):
        turn = operation.submit(session, text)
        operation.call("GET", f"/turns/{turn}/result?wait=20")
    page.open("#/overview")
    page.shows("#overview", "Failed in the last week", "provider_rejected")
    assert page.run(READ_ABOUT, "agents") == []
    page.click("#overview details summary")
    page.shows("#overview", "Agents", "Revision", "Feedback", "$0.0000")
    assert {one.rpartition("/")[2] for one in page.run(READ_ABOUT, "agents")} == {"agents", "agents.js"}
    operation.call(
        "PUT", "/budgets/tenant?name=acme", {"budgets": [{"cost": 5}, {"tokens": 100, "per": "month"}]}
    )
    for number in range(60):  # more than a page of the list
        operation.call("PUT", f"/budgets/user?tenant=acme&name=u{number}", {"budgets": [{"tokens": 7}]})
    assert page.run(READ_ABOUT, "budgets") == []
    page.click("#overview details:last-child summary")
    page.shows("#overview", "acme", "$5.00 per day", "100 tokens per month", "$0.00 (0 %)")
    page.shows("#overview", *(f"acme / u{number}" for number in range(60)))
    operation.call("PUT", "/budgets/tenant?name=acme", {"budgets": None})
    page.shows("#filters", "Failed 3")
    page.run("const one = document.querySelector('select[aria-label=Error]');"
             "one.value = 'provider_rejected'; one.dispatchEvent(new Event('change'))")  # fmt: skip
    wait_until(
        lambda: len(page.text("#overview .panel li[data-state=failed]").split("Requeue")) == 3,
        20,
        "two are listed",
    )
    page.press("Requeue all")
    page.shows("dialog[open]", "with the error provider_rejected")
    assert page.run("return document.activeElement.textContent") == "Cancel"
    page.driver.switch_to.active_element.send_keys("\ue00c")
    assert page.run("return document.querySelectorAll('dialog[open]').length") == 0
    page.press("Requeue all")
    page.click("dialog[open] .main")
    page.shows("#notices", "2 turns run again.")
    page.shows("#filters", "Failed 1")
    assert [one["session_id"] for one in operation.call("GET", "/failed")["turns"]] == ["c"]


def test_a_suspended_turn_has_one_word_and_one_button_that_stops_it(operation):
    page = operation.page
    operation.start_worker()
    operation.submit("s", "tool:refund Please")
    page.open("#/sessions/s")
    page.shows("article footer", "Suspended")
    page.shows("#list", "Suspended")
    page.shows("#filters", "Suspended 1")
    shown = "[...document.querySelectorAll('button')].filter((one) => one.checkVisibility())"
    buttons = f"return {shown}.map((one) => one.innerText)"
    found = page.run(buttons)
    assert (found.count("Stop"), found.count("Cancel")) == (1, 0)
    page.press("Stop")
    page.shows("article .mark", "Stopped: stopped by an operator.")
    page.shows("#filters", "Suspended 0")
    assert "Stop" not in page.run(buttons)


@pytest.mark.parametrize(("width", "height", "scheme"), LOOKS)
def test_every_part_can_be_read_named_and_focused_on_each_screen(operation, width, height, scheme):
    page = operation.page
    operation.start_worker()
    for session, text in (("asks", "tool:refund Please"), ("fails", "fail:rejected*1 Please")):
        operation.submit(session, text, tenant="acme")
    said = [
        {"role": "user", "parts": [{"type": "text", "text": "Show me **everything**"}]},
        {"role": "assistant", "parts": [{"type": "text", "text": MARKDOWN}]},
    ]
    operation.call(
        "POST", "/sessions", {"session_id": "read", "messages": said, "metadata": {"title": "All of it"}}
    )
    parts = {
        "": ("#list", "Suspended", "Failed", "All of it"), "#/overview": ("#overview", "Requeue all", "Approve"),
        "#/sessions/asks": ("#turns", "refund waits for your approval."), "#/sessions/read": ("#turns", "Your order"),
        "#/sessions/fails": ("#turns", "The stage refuses"),
    }  # fmt: skip
    with looking_like(page.driver, width, height, scheme):
        for route, (selector, *texts) in parts.items():
            page.open(route)
            page.shows(selector, *texts)
            picture(page, f"live-{width}-{scheme}-{route.replace('/', '-')}")
            assert page.run(PROBLEMS) == [], route
            assert [one for one in focused_by_tab(page.driver, 14) if not one[1]] == [], route
        page.press("New session") if width > 600 else page.click("#new")
        picture(page, f"live-{width}-{scheme}-dialog")
        assert page.run(PROBLEMS) == []
        page.driver.switch_to.active_element.send_keys("\ue00c")
        assert not page.find("#begin").is_displayed()
    operation.call("POST", "/sessions/asks/cancel", {})
    assert [one for one in page.wrong() if "favicon" not in one] == []


def test_the_check_of_pages_finds_what_is_wrong_with_one(operation):
    page = operation.page
    page.open()
    page.shows("#overview", "Overview")
    page.run(
        "document.getElementById('top').insertAdjacentElement('beforeend', Object.assign(document.createElement('a'),"
        "{ href: '#', tabIndex: 3 }));"
        "const theme = document.getElementById('theme'); theme.removeAttribute('aria-label'); theme.textContent = '';"
        "document.getElementById('new').style.color = 'rgb(200, 200, 210)';"
        "document.getElementById('new').style.marginLeft = '-90px';"
        "document.getElementById('list').style.minWidth = '3000px';"
        "document.querySelector('h1').id = 'top';"
        "document.body.style.width = '3000px'"
    )
    found = "\n".join(page.run(PROBLEMS))
    for problem in ("contrast", "no name", "an order of its own", "covers", "the id top", "wide"):
        assert problem in found, problem
