"""Pictures of the leaderboard's pages over a store, in both themes: ``python scripts/screenshots.py STORE``.

Needs Chromium and what ``make test-browser`` installs. Pictures are 1200 pixels wide and at most 1400 high, and have a
palette of 256 colours, which the browser itself finds. A page on which a path of this machine can be read is an error.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kernelwright.store import Store

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, MOST_HEIGHT = 1200, 1400
PATHS = re.compile(r"/(root|home|work|tmp|Users|var|mnt)/\S*")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# A picture with 256 colours: the most frequent colour of each of the most frequent small cubes of the colour space.
REDUCE = """async (png) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
  const { width, height } = image;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const pixels = canvas.getImageData(0, 0, width, height).data;
  const colours = new Map();
  for (let at = 0; at < pixels.length; at += 4) {
    const colour = (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2];
    colours.set(colour, (colours.get(colour) ?? 0) + 1);
  }
  const cubes = new Map();
  for (const [colour, count] of [...colours].sort((a, b) => b[1] - a[1] || a[0] - b[0])) {
    const key = (colour >> 3) & 0x1f1f1f;
    const cube = cubes.get(key) ?? { colour, count: 0 };
    cube.count += count;
    cubes.set(key, cube);
  }
  const palette = [...cubes.values()].sort((a, b) => b.count - a.count || a.colour - b.colour).slice(0, 256);
  const nearest = new Map();
  const indexOf = (colour) => {
    if (nearest.has(colour)) return nearest.get(colour);
    let best = 0;
    let least = Infinity;
    palette.forEach((one, index) => {
      const parts = [16, 8, 0].map((bits) => ((one.colour >> bits) & 255) - ((colour >> bits) & 255));
      const distance = parts.reduce((sum, part) => sum + part * part, 0);
      if (distance < least) [best, least] = [index, distance];
    });
    nearest.set(colour, best);
    return best;
  };
  const rows = new Uint8Array(height * (width + 1));
  for (let y = 0, at = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1, at += 4) {
      rows[y * (width + 1) + x + 1] = indexOf((pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2]);
    }
  }
  const text = [];
  for (let at = 0; at < rows.length; at += 32768) text.push(String.fromCharCode(...rows.subarray(at, at + 32768)));
  return { width, height, palette: palette.map((one) => one.colour), rows: btoa(text.join("")) };
}"""


def pages_of(store: Store) -> dict[str, str]:
    """By name: the pages that there are pictures of, each with what this store has most of."""
    kernel = _one(
        store,
        "SELECT leaderboard.problem, candidate, evaluation_id, author FROM leaderboard "
        "LEFT JOIN profiles USING (evaluation_id) WHERE rank = 1 AND confirmed AND baseline = 'eager' "
        "ORDER BY (SELECT count(*) FROM lineage WHERE child = candidate) > 0 DESC, "
        "coalesce(json_extract(metrics_json, '$.gflops'), 0) > 0 DESC, low DESC LIMIT 1",
    )
    most = "SELECT id FROM runs {} ORDER BY (SELECT count(*) FROM evaluations WHERE run_id = runs.id) DESC LIMIT 1"
    run = _one(store, most.format(""))["id"]
    found = {
        "ranking": "/",
        "problems": "/problems",
        "problem": f"/problems/{kernel['problem']}",
        "kernel": f"/kernels/{kernel['candidate']}?evaluation={kernel['evaluation_id']}",
        "difference": f"/kernels/{kernel['candidate']}/diff?problem={kernel['problem']}",
        "runs": "/runs",
        "run": f"/runs/{run}",
        "quarantine": "/quarantine",
    }
    wanted = {
        "entrant": (
            "/entrant?author={author}&recipe={recipe}",
            "SELECT author, recipe FROM standings ORDER BY confirmed DESC, low DESC LIMIT 1",
        ),
        "transcript": (
            "/runs/{run_id}/transcript",
            "SELECT run_id FROM llm_uses GROUP BY run_id ORDER BY count(*) DESC LIMIT 1",
        ),
        "archive": (
            "/problems/{problem}/archive.html?run={id}",
            "SELECT runs.id, run_problems.problem FROM runs JOIN run_problems ON run_problems.run_id = runs.id "
            "WHERE json_extract(config_json, '$.search') IS NOT NULL "
            "ORDER BY (SELECT count(*) FROM evaluations WHERE run_id = runs.id) DESC, position LIMIT 1",
        ),
        "compare": (
            "/compare?a={a}&b={b}",
            "SELECT a.run_id AS a, b.run_id AS b FROM run_problems AS a JOIN run_problems AS b "
            "ON a.version = b.version AND a.run_id > b.run_id "
            "GROUP BY a.run_id, b.run_id ORDER BY count(*) DESC LIMIT 1",
        ),
    }
    for name, (path, sql) in wanted.items():
        for row in store.query(sql):
            found[name] = path.format(**row)
    return found


def _one(store: Store, sql: str) -> dict[str, Any]:
    rows = store.query(sql)
    if not rows:
        sys.exit("this store has no confirmed kernel, or no run: there is nothing to take pictures of")
    return rows[0]


@contextmanager
def serving(store: Path) -> Iterator[str]:
    """A server over a store, in a process of its own."""
    command = [sys.executable, "-m", "kernelwright.cli", "serve", "--store", str(store), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit("the server did not start: see kernelwright serve --store STORE")
        yield json.loads(line)["url"].rstrip("/")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def picture(browser: Any, address: str, theme: str) -> bytes:
    """A page as a PNG, as high as it is, within bounds."""
    context = browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme=theme)
    page = context.new_page()
    answer = page.goto(address, wait_until="load")
    if not answer.ok:
        sys.exit(f"{address} answered with status {answer.status}")
    page.wait_for_timeout(500)  # charts, and what is loaded into the page
    if path := PATHS.search(page.locator("body").inner_text()):
        sys.exit(f"{address} shows a path of this machine: {path[0]}")
    height = page.evaluate("Math.ceil(document.querySelector('.bar-bottom').getBoundingClientRect().bottom)")
    height = min(MOST_HEIGHT, height)
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.wait_for_timeout(200)
    found: bytes = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, type="png")
    context.close()
    return found


def indexed(width: int, height: int, palette: list[int], rows: bytes) -> bytes:
    """A PNG with a palette, from rows of indices that each begin with a zero."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = b"".join(colour.to_bytes(3, "big") for colour in palette)
    body = chunk(b"IHDR", head) + chunk(b"PLTE", colours) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def take(pages: Mapping[str, str], site: str, folder: Path) -> None:
    """Write pictures of pages in both themes."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        sys.exit("no Chromium here: apt install chromium (make test-browser does)")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tool = browser.new_page()
        for name, path in pages.items():
            for theme in ("light", "dark"):
                png = picture(browser, f"{site}{path}", theme)
                made = tool.evaluate(REDUCE, base64.b64encode(png).decode("ascii"))
                data = indexed(made["width"], made["height"], made["palette"], base64.b64decode(made["rows"]))
                (folder / f"board-{name}-{theme}.png").write_bytes(data)
                print(f"board-{name}-{theme}.png: {made['width']} x {made['height']}, {len(data) / 1000:.0f} KB")
        browser.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--to", type=Path, default=IMAGES, help="the folder of the pictures (docs/images)")
    parser.add_argument("--only", nargs="*", default=[], help="names of pages, such as kernel; all by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kernelwright.db"  # the name that the pages show
        with closing(sqlite3.connect(asked.store)) as given, closing(sqlite3.connect(copy)) as taken:
            given.backup(taken)
        with Store.open(copy, readonly=True) as store:
            pages = pages_of(store)
        with serving(copy) as site:
            take({name: path for name, path in pages.items() if name in (asked.only or pages)}, site, asked.to)


if __name__ == "__main__":
    main()
