"""With the keyboard alone: everything is reached, seen to be reached, and works. And the theme."""

from __future__ import annotations

import pytest
from browser_store import Shown
from playwright.sync_api import expect

PAGES = {
    "board": lambda shown: "/?suite=kernelwright",
    "problems": lambda shown: "/problems",
    "problem": lambda shown: f"/problems/{shown.tiny}",
    "kernel": lambda shown: shown.replayed_kernel,
    "run": lambda shown: f"/runs/{shown.replayed}",
    "transcript": lambda shown: f"/runs/{shown.replayed}/transcript",
    "compare": lambda shown: f"/compare?a={shown.searched}&b={shown.lined}",
    "quarantine": lambda shown: "/quarantine",
}
# Numbers every control that can be seen, so that the focus can be told from others.
NUMBER = """() => {
  const controls = document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
  );
  let count = 0;
  for (const one of controls) {
    if (one.checkVisibility({ checkVisibilityCSS: true, contentVisibilityAuto: false })) one.dataset.control = count++;
  }
  return count;
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [one.dataset.control ?? null, seen, one.outerHTML.slice(0, 120)];
}"""


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("name", PAGES)
def test_every_control_is_reached_and_its_focus_seen(name, width, shown: Shown, open_page):
    page = open_page(PAGES[name](shown), viewport={"width": width, "height": 800}).page
    page.wait_for_load_state("networkidle")
    count = page.evaluate(NUMBER)
    assert count > 10
    reached = set()
    for _ in range(count * 2 + 20):  # a date has several parts
        page.keyboard.press("Tab")
        number, seen, markup = page.evaluate(FOCUSED)
        if number is None:
            if markup.startswith("<body"):
                break
            continue
        assert seen, markup
        reached.add(int(number))
    assert set(range(count)) <= reached


def test_the_content_is_one_key_away(open_page):
    page = open_page("/").page
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_a_board_is_filtered_and_sorted_with_keys(open_page):
    page = open_page("/?suite=kernelwright").page
    page.get_by_label("Category").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_url("**category=**")
    expect(page.get_by_label("Category")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => !location.search.includes('category')")
    page.locator("#sort-correct").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=correct**")
    expect(page.locator("#sort-correct")).to_be_focused()


def test_details_and_regions_that_scroll_work_with_keys(shown, open_page):
    page = open_page(shown.replayed_kernel, viewport={"width": 360, "height": 740}).page
    page.locator("#metrics summary").focus()
    page.keyboard.press("Enter")
    region = page.locator("#metrics .scroll")
    expect(region).to_have_attribute("tabindex", "0")
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#metrics .scroll').scrollLeft > 0")


def background(page):
    """The colour of the page, once there is one."""
    page.wait_for_load_state("load")
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_a_theme_is_chosen_with_a_key_and_remembered(open_page):
    page = open_page("/", color_scheme="light").page
    light = background(page)
    button = page.get_by_role("button", name="Theme: auto")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Theme: dark")).to_be_focused()
    dark = background(page)
    assert dark != light
    line = "one => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.join()"
    drawn = page.locator(".chart canvas").first.evaluate(line) if page.locator(".chart canvas").count() else None
    page.reload()
    assert background(page) == dark
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    page.get_by_role("link", name="Runs", exact=True).click()
    page.wait_for_url("**/runs")
    assert background(page) == dark
    page.get_by_role("button", name="Theme: dark").press("Space")
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert background(page) == light
    page.emulate_media(color_scheme="dark")
    assert background(page) == light, "a choice goes before the system's"
    page.get_by_role("button", name="Theme: light").click()
    assert background(page) == dark, "auto follows the system"
    page.go_back()
    if drawn is not None:
        assert page.locator(".chart canvas").first.evaluate(line) == drawn


def test_charts_take_the_theme_that_holds(shown, open_page):
    page = open_page(f"/runs/{shown.replayed}", color_scheme="light").page
    pixels = "one => one.toDataURL()"
    canvas = page.locator(".chart canvas")
    expect(canvas).to_have_count(1)
    light = canvas.evaluate(pixels)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("(old) => document.querySelector('.chart canvas').toDataURL() !== old", arg=light)
    expect(canvas).to_have_count(1)


def test_motion_is_reduced_where_that_is_asked_for(open_page):
    page = open_page("/", reduced_motion="reduce").page
    moving = page.evaluate(
        "Array.from(document.querySelectorAll('*'))"
        ".filter(one => getComputedStyle(one).transitionDuration !== '0s').length"
    )
    assert moving == 0
