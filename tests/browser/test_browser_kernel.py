"""A kernel's page: the evidence, the command, the source and what it was made from."""

from __future__ import annotations

import ast
from pathlib import Path

from playwright.sync_api import expect


def test_the_verdict_comes_first(shown, open_page):
    page = open_page(shown.kernel).page
    expect(page.locator("p.lead .badge").first).to_have_text("PASSED")
    first = page.locator("main > dl.facts").first
    expect(first).to_contain_text("Over eager")
    expect(first).to_contain_text("µs")
    tops = page.eval_on_selector_all("main h2", "all => all.map(one => one.textContent)")
    wanted = ["Timing", "Roofline", "Profile", "Correctness", "Conditions", "Evaluations", "Difference", "Source"]
    assert [name for name in tops if name in wanted] == wanted
    expect(page.locator("figure.plot svg").first).to_be_visible()


def test_links_on_the_page_lead_to_their_sections(shown, open_page):
    page = open_page(shown.replayed_kernel).page
    contents = page.get_by_role("navigation", name="On this page")
    for name in ("Timing", "Lineage", "What led to it", "Difference", "Source"):
        contents.get_by_role("link", name=name).click()
        target = page.url.partition("#")[2]
        assert page.locator(f"#{target}").evaluate("one => one.getBoundingClientRect().top < innerHeight"), name


def test_the_command_is_copied(shown, open_page, browser):
    window = open_page(shown.kernel)
    page = window.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=window.site)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.locator("#verify").inner_text()
    assert command.startswith("kernelwright kernels verify ")
    assert page.evaluate("navigator.clipboard.readText()") == command
    expect(page.locator("#announce")).to_have_text("Copied")
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_visible()


def test_what_cannot_be_copied_is_selected(shown, open_page):
    page = open_page(shown.kernel).page
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Select it")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == page.locator("#verify").inner_text()


def test_source_and_drop_in_module_are_downloaded(shown, open_page):
    page = open_page(shown.kernel).page
    for name in ("Source", "Drop-in module"):
        with page.expect_download() as download:
            page.locator(".downloads").get_by_role("link", name=name).click()
        text = Path(download.value.path()).read_text()
        ast.parse(text)
        assert "class ModelNew" in text, name
    verdict = page.locator(".downloads").get_by_role("link", name="Verdict as JSON").get_attribute("href")
    assert page.request.get(page.url.partition("/kernels")[0] + verdict).json()["status"] == "PASSED"


def test_a_hack_offers_no_module_and_shows_its_evidence_as_text(shown, open_page):
    page = open_page(shown.refused_kernel).page
    expect(page.get_by_role("link", name="Drop-in module")).to_have_count(0)
    expect(page.get_by_text("<script>alert(1)</script>").first).to_be_visible()
    expect(page.locator("main .badge.bad").first).to_have_text("REWARD_HACK")


def test_what_changed_from_a_parent_and_from_the_reference(shown, open_page):
    page = open_page(shown.replayed_kernel).page
    expect(page.locator("#changes summary")).to_contain_text("lines added")
    if not page.locator("#changes").evaluate("one => one.open"):
        page.locator("#changes summary").click()
    expect(page.locator("#changes tr.add").first).to_be_visible()
    page.get_by_label("From").select_option("reference")
    assert "/diff" not in page.url, "nothing happens before it is asked for"
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/diff?**against=reference**")
    expect(page.locator("table.diff tr.del").first).to_be_visible()
    page.reload()
    expect(page.locator("main p").first).to_contain_text("the reference of kernelwright/")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Kernel")


def test_a_parent_is_reached_through_the_lineage(shown, open_page):
    page = open_page(shown.replayed_kernel).page
    current = page.locator("h1 code").inner_text()
    link = page.locator("figure.plot svg[role=group] a").first
    expect(link).to_be_visible()
    link.click()
    expect(page.locator("h1 code")).not_to_have_text(current)
    expect(page.locator("figure.plot svg[role=group] .node-current").first).to_be_visible()


def test_an_evaluation_has_an_address(shown, open_page):
    page = open_page(shown.kernel).page
    shown_here = page.locator("tr[aria-current] th a").inner_text()
    page.goto(f"{page.url.partition('/kernels')[0]}/evaluations/{shown_here}")
    assert page.url.endswith(f"?evaluation={shown_here}")
    expect(page.locator("tr[aria-current] th a")).to_have_text(shown_here)


def test_advice_and_replies_are_there(shown, open_page):
    page = open_page(shown.replayed_kernel).page
    expect(page.get_by_role("heading", name="What led to it")).to_be_visible()
    expect(page.locator("article.advice").first).to_contain_text("Bottleneck")
    reply = page.locator("details", has_text="Reply of").first
    reply.locator("summary").click()
    expect(reply.locator("pre")).to_be_visible()


def test_where_a_replayed_kernel_lies_under_the_roof(shown, open_page):
    page = open_page(shown.replayed_kernel).page
    expect(page.locator("svg polyline.ceiling")).to_be_visible()
    page.locator("#metrics summary").click()
    expect(page.locator("#metrics tbody tr")).to_have_count(7)
    expect(page.get_by_text("one loop was not vectorised: <b>it</b> calls expf")).to_be_visible()
