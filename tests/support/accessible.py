"""Accessibility problems of a page for people with low vision, a small screen or no mouse, found in its elements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOOKS = [
    (width, height, scheme) for width, height in ((1280, 800), (360, 740)) for scheme in ("light", "dark")
]
"""A desktop and a phone, each in both colour schemes."""

# ruff: noqa: E501 - JavaScript
PROBLEMS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].map((one, place) => (place < 3 ? one : one / 255));
};
const over = ([r, g, b, a], below) => [r, g, b].map((one, place) => one * a + below[place] * (1 - a));
const backOf = (node) => {
  const back = node ? rgba(getComputedStyle(node).backgroundColor) : [255, 255, 255, 1];
  return !node || back[3] === 1 ? back.slice(0, 3) : over(back, backOf(node.parentElement));
};
const light = (colour) => colour
  .map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const shown = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true })
  && !one.closest(".hidden, .skip") && one.getClientRects().length);
const nameOf = (one) => (one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.title || one.alt
  || document.getElementById(one.getAttribute("aria-labelledby"))?.textContent || one.textContent || "").trim();
const said = (one) => `${one.tagName.toLowerCase()}${one.id && "#" + one.id}.${one.className} ${one.textContent.trim().slice(0, 30)}`;
const found = [];
for (const one of shown) {
  const style = getComputedStyle(one);
  const text = [...one.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  if (text) {
    const back = backOf(one);
    const ratio = contrast(over(rgba(style.color), back), back);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${said(one)}`);
  }
  if (one.matches("button, a, input, select, textarea, summary, [role=button], [tabindex='0']") && !nameOf(one)) found.push(`no name: ${said(one)}`);
  if (one.matches("img:not([alt])")) found.push(`no alternative: ${said(one)}`);
  if (one.tabIndex > 0) found.push(`an order of its own: ${said(one)}`);
}
const pressed = [...document.querySelectorAll("header a, header button, header label")]
  .filter((one) => shown.includes(one)).map((one) => [one, one.getBoundingClientRect()]);
for (const [one, box] of pressed) {
  if (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflow === "visible") found.push(`wider than its place: ${said(one)}`);
  for (const [other, its] of pressed) {
    const apart = box.right <= its.left + 1 || its.right <= box.left + 1 || box.bottom <= its.top + 1 || its.bottom <= box.top + 1;
    if (one !== other && !apart && !one.contains(other) && !other.contains(one)) found.push(`${said(one)} covers ${said(other)}`);
  }
}
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`two elements with the id ${id}`);
if (!document.documentElement.lang || !document.title) found.push("the page has no language or title");
if (document.documentElement.scrollWidth > innerWidth) found.push(`it is ${document.documentElement.scrollWidth} wide`);
return [...new Set(found)];
"""
FOCUS = """
const one = document.activeElement;
if (one === document.body) return null;
const style = getComputedStyle(one);
const box = one.getBoundingClientRect();
const framed = (node) => parseFloat(getComputedStyle(node).outlineWidth) > 0 && getComputedStyle(node).outlineStyle !== "none"
  || getComputedStyle(node).boxShadow !== "none";
const visible = framed(one) || (one.parentElement !== document.body && framed(one.parentElement));
return [one.id || one.getAttribute("aria-label") || one.textContent.trim().slice(0, 30), visible && box.width > 0];
"""


@contextmanager
def looking_like(driver: Any, width: int, height: int, scheme: str) -> Iterator[None]:
    """Show pages at this size and in this colour scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    features = [
        {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
    ]  # fmt: skip
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def focused_by_tab(driver: Any, times: int) -> list[tuple[str, bool]]:
    """Return what has the focus after each press of Tab, and whether the focus is visible."""
    found: list[tuple[str, bool]] = []
    for _ in range(times):
        driver.switch_to.active_element.send_keys("\ue004")
        if (focus := driver.execute_script(FOCUS)) is not None:
            found.append((focus[0], focus[1]))
    return found


def picture(page: Any, name: str) -> None:
    """Save a picture of the page in the folder TEST_PICTURES, if this is set."""
    if folder := os.environ.get("TEST_PICTURES"):
        page.driver.save_screenshot(f"{folder}/{name}.png")
