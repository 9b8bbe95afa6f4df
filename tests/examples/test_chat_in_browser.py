"""The page of examples/chat in headless Chromium, while its workers are killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.accessible import LOOKS, PROBLEMS, focused_by_tab, looking_like, picture
from support.chat import Chat
from support.eventually import wait_until
from support.stage import FIRST_WORDS

from antiphon.errors import user_message

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make setup")
Keys = webdriver.Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.one_server,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="chromium and chromedriver (Debian: chromium-driver) are not installed",
    ),
]

ARTICLES = """
return [...document.querySelectorAll("article")].map((one) => [one.classList[0],
  one.querySelector("p")?.textContent ?? "", one.querySelector("footer").innerText.trim().replaceAll("\\n", " ")])
"""
# Found and pressed in one step: the page may draw itself anew at any moment.
PRESS = """
const found = [...document.querySelectorAll("button")]
  .filter((one) => one.textContent === arguments[0] && one.checkVisibility());
found.at(arguments[1])?.click();
return found.length > 0;
"""

FOCUSED = "const one = document.activeElement; return one.ariaLabel ?? one.textContent.trim()"


class Tab:
    """One tab of a browser."""

    def __init__(self, driver: Any, handle: str) -> None:
        self._driver = driver
        self._handle = handle

    @property
    def driver(self) -> Any:
        self._driver.switch_to.window(self._handle)
        return self._driver

    def articles(self) -> list[list[str]]:
        """Role, text, and what stands below, of each message on the page."""
        return self.driver.execute_script(ARTICLES)

    def shows(self, *texts: str) -> list[list[str]]:
        """The messages, once there are as many as texts and each begins with its own."""

        def so() -> list[list[str]] | None:
            found = self.articles()
            fits = len(found) == len(texts) and all(map(str.startswith, (one[1] for one in found), texts))
            return found if fits else None

        try:
            return wait_until(so, 20)  # type: ignore[return-value]
        except AssertionError:
            assert self.articles() == list(texts)
            raise

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def write(self, text: str) -> None:
        self.find("#text").send_keys(text + "\n")

    def press(self, name: str, number: int = -1) -> None:
        """Press the last button of this name that can be seen (or another one), once there is one."""
        wait_until(lambda: self.driver.execute_script(PRESS, name, number), 20, f"there is a button {name}")


@pytest.fixture
def chat(redis_url, processes, tmp_path) -> Chat:
    return Chat(redis_url, processes, tmp_path)


@pytest.fixture
def open_tab(chat, tmp_path) -> Iterator[Callable[..., Tab]]:
    """Open tabs of one browser; all of them show the same chat."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path / 'browser'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    opened: list[Tab] = []

    def open_one() -> Tab:
        if opened:
            driver.switch_to.new_window("tab")
        driver.get(f"{chat.url}/#c")
        opened.append(Tab(driver, driver.current_window_handle))
        return opened[-1]

    try:
        yield open_one
        wrong = [one["message"] for one in driver.get_log("browser") if "Uncaught" in one["message"]]
        assert wrong == []
    finally:
        driver.quit()


@pytest.mark.main_path
def test_an_answer_is_seen_as_it_comes_and_after_a_reload_in_its_middle(chat, open_tab):
    worker = chat.start_worker()
    tab = open_tab()
    question = "gate:g words:3 gate:h Hello"
    tab.write(question)
    tab.shows(question, FIRST_WORDS)
    tab.driver.refresh()
    tab.shows(question, FIRST_WORDS)
    worker.kill()
    chat.start_worker()
    chat.stage.open("g")
    wait_until(lambda: tab.articles()[-1][1].endswith("2 "), 20, "another worker goes on with the answer")
    assert tab.articles()[-1][1] == FIRST_WORDS + "0 1 2 "
    chat.stage.open("h")
    wait_until(lambda: [one[2] for one in tab.articles()] == ["Edit", "Regenerate"], 20)
    tab.shows(question, FIRST_WORDS + "I was shown 1 messages")
    wait_until(lambda: titles(tab) == [question], 20, "the chat has its title")


def test_stop_keeps_what_was_said_and_the_chat_goes_on(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("gate:g Tell me all")
    tab.shows("gate:g Tell me all", FIRST_WORDS)
    tab.press("Stop")
    wait_until(lambda: "stopped" in tab.articles()[-1][2], 20)
    assert tab.articles()[-1] == ["assistant", FIRST_WORDS, "stopped Regenerate"]
    assert not tab.find("#stop").is_displayed()
    tab.write("Go on")
    tab.shows("gate:g Tell me all", FIRST_WORDS, "Go on", FIRST_WORDS + "I was shown 3 messages")


def test_a_failed_question_is_tried_again(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("Hello")
    tab.shows("Hello", FIRST_WORDS + "I was shown 1")
    tab.write("fail:rejected*1 Please")
    wait_until(lambda: tab.articles()[-1][2].endswith("Try again"), 20)
    tab.driver.refresh()
    wait_until(lambda: tab.articles() and tab.articles()[-1][2].endswith("Try again"), 20)
    assert tab.articles()[-1][2].startswith(user_message("provider_rejected"))
    tab.press("Try again")
    found = tab.shows("Hello", FIRST_WORDS, "fail:rejected*1 Please", FIRST_WORDS + "I was shown 3")
    assert "Try again" not in str(found)


def test_an_assistant_without_a_key_is_not_available_and_is_asked_again_when_it_has_one(chat, open_tab):
    worker = chat.start_worker()
    tab = open_tab()
    tab.write("Hello")
    wait_until(lambda: [one[2] for one in tab.articles()] == ["Edit", "Regenerate"], 20)
    worker.kill()
    worker = chat.start_example_worker(CHAT_PROVIDER="openai")
    tab.press("Regenerate")
    sentence = user_message("settings")  # what is missing is in the log of the worker
    wait_until(lambda: tab.find("#note").text == sentence, 20, "the page has the sentence for end users")
    assert [one[2] for one in tab.articles()] == ["Edit", "Regenerate"]
    tab.write("And then?")
    wait_until(lambda: tab.articles()[-1][2].endswith("Try again"), 20)
    worker.kill()
    chat.start_worker()
    tab.press("Try again")
    tab.shows("Hello", FIRST_WORDS, "And then?", FIRST_WORDS + "I was shown 3")


def test_an_edit_and_a_new_answer_take_the_place_of_the_old_ones(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("Hello")
    tab.shows("Hello", FIRST_WORDS + "I was shown 1")
    tab.write("And then?")
    tab.shows("Hello", FIRST_WORDS, "And then?", FIRST_WORDS + "I was shown 3")
    tab.press("Edit", 0)
    tab.find("#changed").clear()
    tab.find("#changed").send_keys("gate:g Goodbye")
    tab.press("Ask again")
    tab.shows("gate:g Goodbye", FIRST_WORDS)
    chat.stage.open("g")
    tab.shows("gate:g Goodbye", FIRST_WORDS + "I was shown 1")
    tab.press("Regenerate")
    wait_until(lambda: len(chat.stage.notes("said", text="gate:g Goodbye")) == 2, 20)
    wait_until(lambda: [one[2] for one in tab.articles()] == ["Edit", "Regenerate"], 20)
    tab.shows("gate:g Goodbye", FIRST_WORDS + "I was shown 1")


def test_two_tabs_show_the_same(chat, open_tab):
    chat.start_worker()
    one, other = open_tab(), open_tab()
    one.write("gate:g Hello")
    for tab in (one, other):
        tab.shows("gate:g Hello", FIRST_WORDS)
    other.write("And then?")
    for tab in (one, other):
        wait_until(lambda tab=tab: tab.articles()[-1][2] == "waiting", 20)
        tab.shows("gate:g Hello", FIRST_WORDS, "And then?", "")
    chat.stage.open("g")
    expected = ("gate:g Hello", FIRST_WORDS + "I was shown 1", "And then?", FIRST_WORDS + "I was shown 3")
    for tab in (one, other):
        wait_until(lambda tab=tab: tab.articles()[-1][2] == "Regenerate", 20)
    assert one.shows(*expected) == other.shows(*expected)


def test_tabs_that_nobody_sees_leave_connections_for_others(chat, open_tab):
    """Browsers have six for one server: the tabs that are not seen hold none, and go on when they are seen again."""
    chat.start_worker()
    tabs = [open_tab() for _ in range(7)]
    question = "gate:g words:3 gate:h Hello"
    tabs[-1].write(question)
    for tab in tabs:
        tab.shows(question, FIRST_WORDS)
    chat.stage.open("g")
    for tab in tabs:
        wait_until(lambda tab=tab: tab.articles()[-1][1] == FIRST_WORDS + "0 1 2 ", 20, "it goes on")
    chat.stage.open("h")
    for tab in tabs:
        tab.shows(question, FIRST_WORDS + "I was shown 1 messages")


def test_a_page_goes_on_when_its_web_server_comes_back(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("gate:g Hello")
    tab.shows("gate:g Hello", FIRST_WORDS)
    chat.server.kill()
    tab.write("And then?")
    wait_until(lambda: tab.find("#note").text, 20, "the page says that it has no connection")
    chat.stage.open("g")
    chat.restart_server()
    tab.shows("gate:g Hello", FIRST_WORDS + "I was shown 1")
    tab.find("#send").click()  # the text is still there
    tab.shows("gate:g Hello", FIRST_WORDS, "And then?", FIRST_WORDS + "I was shown 3")


def test_chats_are_found_renamed_and_deleted_with_the_keyboard_alone(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("Hello")
    wait_until(lambda: titles(tab) == ["Hello"], 20)
    Keyboard(tab).reach("Rename Hello").press(Keys.ENTER).type(Keys.CONTROL + "a").type("Plans for May")
    Keyboard(tab).reach("Rename").press(Keys.ENTER)
    wait_until(lambda: titles(tab) == ["Plans for May"], 20)
    Keyboard(tab).reach("Search the chats").type("june")
    wait_until(lambda: tab.find("#none").is_displayed() and titles(tab) == [], 20)
    Keyboard(tab).reach("Search the chats").type(*[Keys.BACKSPACE] * 4, "MAY")
    wait_until(lambda: titles(tab) == ["Plans for May"], 20)
    Keyboard(tab).reach("Delete Plans for May").press(Keys.ENTER)
    Keyboard(tab).press(Keys.ESCAPE)
    Keyboard(tab).reach("Delete Plans for May").press(Keys.ENTER)
    Keyboard(tab).reach("Delete").press(Keys.ENTER)
    wait_until(
        lambda: "c" not in tab.driver.current_url.rpartition("#")[2].split("-") and tab.articles() == [], 20
    )
    wait_until(lambda: titles(tab) == [], 20)


def test_what_was_said_is_found_with_the_keyboard_alone_on_each_screen(
    redis_url, processes, tmp_path, open_tab, chat
):
    chat.archive(f"sqlite:///{tmp_path}/chat.db")
    chat.restart_server()
    chat.start_worker()
    tab = open_tab()
    tab.write("Kyoto in May")
    wait_until(lambda: titles(tab) == ["Kyoto in May"], 20, "it has a title")
    Keyboard(tab).reach("Rename Kyoto in May").press(Keys.ENTER).type(Keys.CONTROL + "a").type("A trip")
    Keyboard(tab).reach("Rename").press(Keys.ENTER)
    wait_until(lambda: titles(tab) == ["A trip"], 20)
    for width, height, scheme in LOOKS:
        with looking_like(tab.driver, width, height, scheme):
            tab.driver.refresh()
            wait_until(lambda: tab.find("#search").get_attribute("placeholder") == "Search chats", 20)
            if width < 700:
                Keyboard(tab).reach("Show the chats").press(Keys.ENTER)
            Keyboard(tab).reach("Search the chats").type("kyoto")
            wait_until(lambda: tab.driver.execute_script(MARKED) == ["Kyoto"], 20, "where it was said")
            picture(tab, f"chat-search-{width}-{scheme}")
            assert tab.driver.execute_script(PROBLEMS) == [], (width, scheme)


MARKED = "return [...document.querySelectorAll('#chats mark')].map((one) => one.textContent)"


def titles(tab: Tab) -> list[str]:
    return tab.driver.execute_script(
        "return [...document.querySelectorAll('#chats a')].map((one) => one.textContent)"
    )


class Keyboard:
    """Somebody without a mouse."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab

    def reach(self, name: str) -> Keyboard:
        """Press Tab until the element with this name has the focus."""
        for _ in range(60):
            if name == self._tab.driver.execute_script(FOCUSED):
                return self
            self.press(Keys.TAB)
        raise AssertionError(f"Tab does not reach {name!r}")

    def press(self, key: str) -> Keyboard:
        webdriver.ActionChains(self._tab.driver).send_keys(key).perform()
        return self

    def type(self, *keys: str) -> Keyboard:
        self._tab.driver.switch_to.active_element.send_keys(*keys)
        return self


def test_every_part_can_be_read_named_and_focused_on_each_screen(chat, open_tab):
    chat.start_worker()
    tab = open_tab()
    tab.write("Hello")
    tab.shows("Hello", FIRST_WORDS)
    wait_until(lambda: [one[2] for one in tab.articles()] == ["Edit", "Regenerate"], 20)
    for width, height, scheme in LOOKS:
        with looking_like(tab.driver, width, height, scheme):
            tab.driver.refresh()
            tab.shows("Hello", FIRST_WORDS)
            picture(tab, f"chat-{width}-{scheme}")
            assert tab.driver.execute_script(PROBLEMS) == [], (width, scheme)
            assert [one for one in focused_by_tab(tab.driver, 14) if not one[1]] == [], (width, scheme)
