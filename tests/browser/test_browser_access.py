"""Submitting with a token, and a board that is for holders of a token alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from test_browser_pages import THEMES, check, overflow

SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.mark.parametrize("theme", THEMES)
def test_the_form_is_accessible_and_fits_a_phone(theme, submitting_site, window):
    wide = window(submitting_site, color_scheme=theme)
    check(wide.go("/submit"))
    narrow = window(submitting_site, color_scheme=theme, viewport={"width": 360, "height": 740})
    assert overflow(narrow.go("/submit")) == 0


def test_a_kernel_is_submitted_with_a_token(shown, tokens, submitting_site, window):
    one = window(submitting_site)
    page = one.go("/")
    page.get_by_role("link", name="Submit").click()
    expect(page.get_by_role("link", name="Submit")).to_have_attribute("aria-current", "page")
    page.get_by_label("Problem").fill(shown.tiny)
    page.get_by_label("Language").select_option("cpp")
    page.get_by_role("textbox", name="The file").fill(SOURCE)
    page.get_by_label("Note").fill('<i>"mine"</i> & nobody else\'s')
    page.get_by_label("Token").fill(tokens["submit"])
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/submissions/**")
    expect(page.locator("main .badge").first).to_have_text("waiting")
    expect(page.get_by_text('<i>"mine"</i> & nobody else\'s')).to_be_visible()
    expect(page.get_by_role("link", name=shown.tiny)).to_be_visible()
    check(page)
    assert tokens["submit"] not in page.content()
    page.reload()
    expect(page.locator("main .badge").first).to_have_text("waiting")


def test_a_wrong_token_is_told_and_nothing_that_was_written_is_lost(shown, submitting_site, window):
    one = window(submitting_site)
    one.expected.append("status of 401")
    page = one.go("/submit")
    page.get_by_label("Problem").fill(shown.tiny)
    page.get_by_role("textbox", name="The file").fill(SOURCE)
    page.get_by_label("Token").fill("kw_wrong")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("a token for submitting is needed")
    expect(page.get_by_role("textbox", name="The file")).to_have_value(SOURCE)
    expect(page.get_by_label("Token")).to_have_value("")
    check(page)


def test_what_is_missing_is_told_before_anything_is_sent(submitting_site, window):
    page = window(submitting_site).go("/submit")
    page.get_by_role("button", name="Submit").click()
    assert page.url.endswith("/submit")
    expect(page.get_by_label("Problem")).to_be_focused()


@pytest.mark.parametrize("theme", THEMES)
def test_strangers_see_the_login_alone(theme, public_site, window):
    one = window(public_site, color_scheme=theme)
    page = one.go("/runs")
    assert page.url.endswith("/login")
    check(page)
    assert overflow(page) == 0


def test_a_reader_logs_in_and_stays_so(shown, tokens, public_site, window):
    one = window(public_site)
    one.expected.append("status of 401")
    page = one.go("/")
    page.get_by_label("Token").fill("kw_wrong")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(tokens["read"])
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Board")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    cookie = next(c for c in page.context.cookies() if c["name"] == "kernelwright_token")
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""


def test_a_live_run_of_a_public_board_is_followed(shown, tokens, public_site, window):
    one = window(public_site)
    page = one.go("/login")
    page.get_by_label("Token").fill(tokens["read"])
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Board")
    page = one.go(f"/runs/{shown.live}")
    expect(page.locator(".live")).to_have_text("live")
