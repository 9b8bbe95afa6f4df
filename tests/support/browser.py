"""Headless Chromium, and the operator dashboard as a person sees and uses it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.eventually import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ABSENT = (
    "" if CHROMIUM and DRIVER else "chromium and chromedriver (Debian: chromium-driver) are not installed"
)

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--window-size=1280,800",
)
# Found and pressed in one step: the page may redraw itself at any moment.
PRESS = """
const found = [...document.querySelectorAll("button, a")]
  .filter((one) => one.checkVisibility() && [one.textContent.trim(), one.ariaLabel].includes(arguments[0]));
found.at(-1)?.click();
return found.length > 0;
"""
TURNS = """
return [...document.querySelectorAll("article.turn")].map((one) => [
  one.querySelector(".asked")?.innerText.replace("User", "").trim() ?? "",
  [...one.querySelectorAll(".said")].map((said) => said.innerText.trim()).join("\\n"),
  one.dataset.status,
])
"""


@contextmanager
def open_browser(directory: Path) -> Iterator[Any]:
    """Open a browser with its own profile."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={directory}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page ``/live`` of a gateway."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, route: str = "") -> None:
        """Open a part of the page as for the first time."""
        self.leave()
        self.driver.get(f"{self.url}/live{route}")

    def leave(self) -> None:
        """Show an empty page."""
        self.driver.get("about:blank")

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        """Click on the first element of a selector as soon as there is one."""
        click = "const one = document.querySelector(arguments[0]); one?.click(); return one !== null"
        wait_until(lambda: self.run(click, selector), 20, f"there is {selector}")

    def text(self, selector: str) -> str:
        """Return the visible text of the elements of a selector."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText).join('\\n')",
            selector,
        )

    def shows(self, selector: str, *texts: str) -> str:
        """Wait until the elements contain all these texts, and return their text."""
        try:
            wait_until(lambda: all(one in self.text(selector) for one in texts), 20)
        except AssertionError:
            raise AssertionError(f"{selector} shows {self.text(selector)!r}, not {texts}") from None
        return self.text(selector)

    def turns(self) -> list[list[str]]:
        """Return the question, the answer and the status of each turn on the page."""
        return self.run(TURNS)

    def shows_turns(self, *expected: tuple[str, str, str]) -> None:
        """Wait until exactly these turns are on the page: the question, the beginning of the answer, the status."""

        def so() -> bool:
            found = self.turns()
            return len(found) == len(expected) and all(
                asked == one[0] and one[1].startswith(said) and one[2] == status
                for one, (asked, said, status) in zip(found, expected, strict=True)
            )

        try:
            wait_until(so, 20)
        except AssertionError:
            assert self.turns() == [list(one) for one in expected]

    def press(self, name: str) -> None:
        """Press the last visible button with this name, once there is one."""
        wait_until(lambda: self.run(PRESS, name), 20, f"there is a button {name}")

    def write(self, text: str) -> None:
        """Write a message to the open session, and send it with Enter."""
        self.find("#text").send_keys(text + "\n")

    def wrong(self) -> list[str]:
        """Return what the browser has logged: errors, refused requests, violations of the policy."""
        return [
            one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")
        ]
