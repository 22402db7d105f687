"""What the pages are made of: vendored files, templates, colours. No server, no browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwright.leaderboard import _cells

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "kernelwright" / "leaderboard"
STATIC = ROOM / "static"
VENDOR = STATIC / "vendor"
TEMPLATES = ROOM / "templates"
SCRIPT = ROOT / "scripts" / "vendor.py"

MOST_PAGE_BYTES = 150_000  # scripts and styles of a page with charts, not compressed
LEAST_TEXT, LEAST_GRAPHIC = 4.5, 3.0  # WCAG 2.2, 1.4.3 and 1.4.11


# What is vendored


def test_vendored_files_are_those_that_are_listed():
    rows = tomllib.loads((VENDOR / "VENDOR.toml").read_text(encoding="utf-8"))["vendored"]
    assert {row["name"] for row in rows} == {"htmx.org", "uplot"}
    listed = set()
    for row in rows:
        assert sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        assert sha256((VENDOR / row["licence_file"]).read_bytes()).hexdigest() == row["licence_sha256"]
        assert row["url"].endswith(f"-{row['version']}.tgz")
        assert row["licence"] in ("0BSD", "MIT")
        listed |= {row["file"], row["licence_file"]}
    assert {path.name for path in VENDOR.iterdir()} == listed | {"VENDOR.toml"}


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--check", "--to", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_check_of_vendored_files_fails_where_one_differs(tmp_path):
    assert _check(VENDOR).returncode == 0
    folder = shutil.copytree(VENDOR, tmp_path / "vendor")
    with (folder / "htmx.min.js").open("ab") as file:
        file.write(b"\n")
    (folder / "uplot-LICENSE.txt").unlink()
    (folder / "more.js").touch()
    found = _check(folder)
    assert found.returncode == 1
    assert [line.split(" ")[0] for line in found.stderr.splitlines()] == ["more.js", "htmx.min.js", "uplot-LICENSE.txt"]


def test_a_page_with_charts_is_small():
    names = (
        "theme.js",
        "site.js",
        "site.css",
        "vendor/htmx.min.js",
        "vendor/uPlot.iife.min.js",
        "vendor/uPlot.min.css",
    )
    assert sum((STATIC / name).stat().st_size for name in names) <= MOST_PAGE_BYTES


# What pages may say


def _own_files() -> list[Path]:
    static = [path for path in STATIC.rglob("*") if path.is_file() and VENDOR not in path.parents]
    return sorted(static) + sorted(TEMPLATES.rglob("*.html"))


def test_nothing_is_fetched_from_elsewhere():
    for path in _own_files():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(=]//\w", text), path.name


class _Forbidden(HTMLParser):
    """Collects what the Content-Security-Policy would block, or what htmx would evaluate."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("style", "base", "iframe", "object", "embed"):
            self.found.append(f"<{tag}>")
        if tag == "script" and "src" not in given and given.get("type") != "application/json":
            self.found.append("inline <script>")
        for name, value in given.items():
            if name == "style" or re.match(r"on[a-z]+$|(data-)?hx-on", name):
                self.found.append(f"{name}=")
            if re.match(r"\s*(javascript|js):", value, re.IGNORECASE):
                self.found.append(f"{name}: a script")
            if name.endswith("hx-trigger") and "[" in value:
                self.found.append(f"{name}: a condition")
            if name in ("src", "href") and value.startswith("/static/"):
                self.found.append(f"{name}: an asset without its hash")


def _forbidden(template: str) -> list[str]:
    markup = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    markup = re.sub(r"\{\{.*?\}\}", "0", markup, flags=re.DOTALL)
    markup = re.sub(r"\{%.*?%\}", " ", markup, flags=re.DOTALL)
    parser = _Forbidden()
    parser.feed(markup)
    parser.close()
    in_expressions = re.findall(r"<script\b(?=[^>]*>\s*\|)|\bstyle\s*=\s*[\"']", template)
    return parser.found + in_expressions


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.name)
def test_templates_have_no_inline_style_handler_or_script(path):
    assert _forbidden(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "markup",
    [
        '<p style="color: red">',
        "<p{% if a > b %} style='color: red'{% endif %}>",
        "{{ '<i style=\"x\">'|safe }}",
        "<style>p {}</style>",
        '<a href="{{ x("y") }}" onclick="f()">',
        "<script>f()</script>",
        '<script type="module">f()</script>',
        '<p hx-on:click="f()">',
        '<p data-hx-on::load="f()">',
        '<p hx-vals="js:{a: f()}">',
        '<a href="JavaScript:f()">',
        '<p hx-trigger="click[ctrlKey]">',
        '<script src="/static/site.js"></script>',
        "<base href=/>",
    ],
)
def test_the_check_of_templates_finds(markup):
    assert _forbidden(markup)


def test_the_check_of_templates_lets_pass_what_is_allowed():
    assert not _forbidden(
        '<script type="application/json">{"on": 1}</script><script src="{{ asset("site.js") }}" defer></script>'
        '{% if on == 1 %}<option{% if a == b %} selected{% endif %} value="{{ one("x") }}">{% endif %}'
    )


def test_scripts_evaluate_nothing_and_insert_no_html():
    for name in ("theme.js", "site.js"):
        text = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(
            r"\beval\(|new Function|innerHTML\s*=|outerHTML\s*=|insertAdjacentHTML|document\.write", text
        )


# The frame and the macros


def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"asset": lambda path: f"/static/HASH/{path}", "version": "1.2.3", "store_name": "<store>"}
    environment.globals["cells"] = _cells
    return environment


def test_the_frame_links_to_assets_that_exist():
    page = _environment().get_template("_base.html").render(has_charts=True, section="runs", accepts_submissions=True)
    names = re.findall(r'"/static/HASH/([^"]+)"', page)
    assert names
    assert all((STATIC / name).is_file() for name in names)
    assert re.findall(r'<a href="([^"]*)" aria-current="page">', page) == ["/runs"]
    assert "/submit" in page
    assert "&lt;store&gt;" in page
    plain = _environment().get_template("_base.html").render()
    assert "uPlot" not in plain
    assert "/submit" not in plain
    assert "aria-current" not in plain


def test_htmx_knows_each_option_that_it_is_given():
    page = _environment().get_template("_base.html").render()
    found = re.search(r"<meta name=\"htmx-config\" content='([^']*)'>", page)
    assert found is not None
    options = json.loads(found[1])
    htmx = (VENDOR / "htmx.min.js").read_text(encoding="utf-8")
    defaults = re.search(r"this\.config=\{(.*?)\}", htmx)
    assert defaults is not None
    assert options.keys() <= set(re.findall(r"(\w+):", defaults[1]))
    assert options["includeIndicatorCSS"] is False
    assert options["extensions"] in (STATIC / "site.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0"),
        (1.5312, "1.53"),
        (153.12, "153"),
        (1531.2, "1,531"),
        (0.01234, "0.0123"),
        (50000, "50,000"),
        (0.000123, "1.23e-04"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers(value, shown):
    assert str(_cells.number(value)) == shown


def test_macros_escape_and_mark_up():
    macros = _environment().get_template("_macros.html").module

    def link(**query: object) -> str:
        return "/runs?" + "&".join(f"{name}={value}" for name, value in query.items())

    assert macros.number(0.5, 2, "ms") == "0.50&nbsp;ms"
    assert macros.speedup(1.5312, 1.49, 1.57, True) == (
        '<span class="speedup good">1.53x</span> <small class="interval">[1.49, 1.57]</small>'
    )
    assert "not shown to be faster" in macros.speedup(1.01, 0.98, 1.04, False)
    assert macros.speedup(None, None, None) == "–"
    assert macros.badge("<b>", "bad") == '<span class="badge bad">&lt;b&gt;</span>'
    assert 'href="/board.csv?a=1&amp;b=x+y"' in macros.downloads("/board", {"a": 1, "b": "x y"})
    assert 'href="/board.json"' in macros.downloads("/board", {})
    assert "<code>kernelwright runs list</code>" in macros.empty("Nothing.", "kernelwright runs list")
    assert macros.pager(1, 1, link) == ""
    assert 'href="/runs?page=3" rel="next"' in macros.pager(2, 3, link)
    assert 'aria-sort="descending"' in macros.sort_header("Cost", "cost", "cost", "desc", link)
    assert "sort=name&amp;order=asc" in macros.sort_header("Name", "name", "cost", "desc", link, numeric=False)
    assert macros.when("2026-11-26T02:34:11Z").endswith(">2026-11-26 02:34 UTC</time>")
    assert macros.short("a" * 64).endswith(f">{'a' * 12}</code>")


@pytest.mark.parametrize(
    "cell",
    [
        _cells.badge,
        _cells.status_badge,
        _cells.state_badge,
        _cells.short,
        _cells.problem_link,
        _cells.when,
        _cells.stamp,
        _cells.number,
        lambda text: _cells.badge("text", text),
        lambda text: _cells.kernel_link(text, text),
        lambda text: _cells.speedup(1.0, text, text),
        lambda text: _cells.number(1.0, 3, text),
    ],
)
def test_cells_escape_what_may_be_anybodys_text(cell):
    made = str(cell("\"><script>alert('&')</script>"))
    assert "<script" not in made
    assert made.count('"') % 2 == 0
    assert "script" in made


def test_cells_of_what_is_not_known_say_so():
    cells = (_cells.number, _cells.percent, _cells.latency, _cells.short, _cells.when, _cells.stamp)
    assert {str(cell(None)) for cell in cells} == {"–"}
    assert {str(cell(StrictUndefined())) for cell in cells[:3]} == {"–"}
    assert str(_cells.dollars(None)) == "unknown"
    assert str(_cells.latency(0.2153, 0.2, 0.23)) == '215&nbsp;µs <small class="interval">[200, 230]</small>'
    assert (str(_cells.latency(12.0)), str(_cells.percent(0.125)), str(_cells.dollars(1.5, 2))) == (
        "12.0&nbsp;ms",
        "12.5%",
        "$1.50",
    )
    assert str(_cells.problem_link("suite/level1/a b")) == '<a href="/problems/suite/level1/a%20b">level1/a b</a>'
    linked = str(_cells.kernel_link("a" * 64, "01E"))
    assert linked.startswith(f'<a href="/kernels/{"a" * 64}?evaluation=01E"><code class="hash"')


# Colours

CODE = ("comment", "keyword", "string", "number", "function", "type", "builtin", "decorator", "preproc", "error")
CODE_PAGES = ("code-page", "add-page", "del-page", "hunk-page", "mark-page")
BADGES = ("good", "bad", "warn", "quiet")


def _text_pairs() -> Iterator[tuple[str, str]]:
    """Every foreground with every background that it is set on."""
    for text in ("text", "muted", "link"):
        yield from ((text, page) for page in ("page", "raised", "quiet-page", "code-page"))
    yield from ((text, "warn-page") for text in ("text", "link"))  # the current node of a lineage
    for badge in BADGES:
        yield from ((badge, page) for page in (f"{badge}-page", "page", "raised"))
    yield from ((f"series-{number}", "page") for number in range(8))
    yield from (("cell-low-text" if number < 5 else "cell-high-text", f"cell-{number}") for number in range(10))
    for name in ("text", "link", *(f"code-{part}" for part in CODE)):
        yield from ((name, page) for page in CODE_PAGES)


def _style() -> str:
    return re.sub(r"/\*.*?\*/", "", (STATIC / "site.css").read_text(encoding="utf-8"), flags=re.DOTALL)


def _colours(theme: int) -> dict[str, str]:
    """The custom properties that are colours, in the light (0) or dark (1) theme."""
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", _style())
    return {name: values[theme] for name, *values in found}


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_wcag_says():
    assert _contrast("#000000", "#ffffff") == pytest.approx(21)
    assert 4.4 < _contrast("#777777", "#ffffff") < LEAST_TEXT


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(theme):
    colours = _colours(theme)
    pairs = {pair: _contrast(colours[pair[0]], colours[pair[1]]) for pair in _text_pairs()}
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < LEAST_TEXT} == {}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_borders_of_controls_and_the_focus_can_be_seen(theme):
    colours = _colours(theme)
    for name in ("edge", "focus"):
        for page in ("page", "raised", "code-page"):
            assert _contrast(colours[name], colours[page]) >= LEAST_GRAPHIC, (name, page)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_cells_go_from_one_end_to_the_other(theme):
    colours = _colours(theme)
    steps = [_luminance(colours[f"cell-{number}"]) for number in range(10)]
    assert steps == sorted(steps, reverse=theme == 0)
    assert all(_contrast(colours[f"cell-{n}"], colours[f"cell-{n + 1}"]) > 1.15 for n in range(9))


def test_all_colours_of_text_are_checked():
    rules = _style().split("}", 1)[1]  # after the list of properties
    assert not re.search(r"#[0-9a-f]{3,8}\b(?!-)[^{]*;|\brgba?\(|\bhsla?\(", rules)
    texts = {text for text, _ in _text_pairs()}
    pages = {page for _, page in _text_pairs()} | {"good"}  # the dot of a live line
    plain = {"inherit", "transparent", "currentcolor"}
    for value in re.findall(r"(?<![\w-])color: ([^;]+);", rules):
        assert value in plain or value.removeprefix("var(--").removesuffix(")") in texts, value
    for value in re.findall(r"(?<![\w-])background(?:-color)?: ([^;]+);", rules):
        assert value.removeprefix("var(--").removesuffix(")") in pages, value


def test_code_is_coloured_by_names_that_pygments_uses():
    from pygments import token

    known = set(token.STANDARD_TYPES.values())
    classes: set[str] = set()
    for group, value in re.findall(r"\.code :is\(([^)]*)\) \{ color: var\(--([\w-]+)\)", _style()):
        if value.startswith("code-"):
            classes |= set(re.findall(r"\.(\w+)", group))
    assert len(classes) > 40
    assert classes <= known
    kinds = (token.Comment, token.Keyword, token.Literal.String, token.Literal.Number)
    plain = {"sd", "dl", "sa", "fm"}  # named above, or text
    wanted = {name for kind, name in token.STANDARD_TYPES.items() if any(kind in family for family in kinds)}
    assert wanted - plain <= classes


def test_lines_of_charts_are_dashed_as_those_of_the_style_sheet():
    styles = re.findall(r"--dash: ([^;]+);", _style())
    found = re.search(r"const DASHES = (\[.*?\]);", (STATIC / "site.js").read_text(encoding="utf-8"))
    assert found is not None
    assert [" ".join(map(str, dash)) or "none" for dash in json.loads(found[1])] == styles
