"""Brings the web board's JavaScript and CSS into the package, unmodified and pinned.

``vendor.py`` fetches the packages named below with ``npm pack``, copies the files that pages load, with their licences,
to ``kernelwright/leaderboard/static/vendor/`` and writes ``VENDOR.toml`` beside them. ``vendor.py --check`` fetches
nothing: it hashes what is there and ends with 1 where a file differs, is missing, or is not listed.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).resolve().parents[1] / "kernelwright" / "leaderboard" / "static" / "vendor"
LISTING = "VENDOR.toml"
HEADER = """\
# Written by scripts/vendor.py, which also checks it (--check). The files are as their packages hold them.
"""


class Package(NamedTuple):
    """One npm package and what is taken from it."""

    name: str
    version: str
    licence: str
    licence_file: str  # the name that its LICENSE gets here
    files: tuple[str, ...]  # paths inside the package; each keeps its last part as its name

    @property
    def url(self) -> str:
        """Where the registry holds the tarball."""
        return f"https://registry.npmjs.org/{self.name}/-/{self.name}-{self.version}.tgz"


PACKAGES = (
    Package("htmx.org", "4.0.1", "0BSD", "htmx-LICENSE.txt", ("dist/htmx.min.js",)),
    Package("uplot", "1.6.32", "MIT", "uplot-LICENSE.txt", ("dist/uPlot.iife.min.js", "dist/uPlot.min.css")),
)


def main() -> int:
    """The exit status: 1 where something differs from what is pinned."""
    parser = argparse.ArgumentParser(description="Vendor the web board's JavaScript and CSS.")
    parser.add_argument("--check", action="store_true", help="fetch nothing; hash the files and compare")
    parser.add_argument("--to", type=Path, default=VENDOR, metavar="DIR", help="the folder (default: %(default)s)")
    arguments = parser.parse_args()
    problems = check(arguments.to) if arguments.check else fetch(arguments.to)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def check(folder: Path) -> list[str]:
    """What differs between the files of ``folder`` and its listing, one sentence each."""
    rows = _listed(folder)
    expected = {row["file"]: row["sha256"] for row in rows}
    expected |= {row["licence_file"]: row["licence_sha256"] for row in rows}
    present = {path.name for path in folder.glob("*") if path.name != LISTING}
    problems = [f"{name} is not listed in {LISTING}" for name in sorted(present - expected.keys())]
    for name, sha256 in sorted(expected.items()):
        if name not in present:
            problems.append(f"{name} is missing: run scripts/vendor.py")
        elif _sha256((folder / name).read_bytes()) != sha256:
            problems.append(f"{name} differs from what {LISTING} lists")
    pinned = {(package.name, package.version) for package in PACKAGES}
    listed = {(row["name"], row["version"]) for row in rows}
    for name, version in sorted(pinned ^ listed):
        problems.append(f"{name} {version} is pinned or listed, but not both: run scripts/vendor.py")
    return problems


def fetch(folder: Path) -> list[str]:
    """Fetch all packages and write them; nothing is written where a pinned version's content has changed."""
    known = {(row["name"], row["version"], row["file"]): row["sha256"] for row in _listed(folder)}
    contents: dict[str, bytes] = {}
    rows: list[dict[str, str]] = []
    problems: list[str] = []
    for package in PACKAGES:
        members = _unpack(package)
        contents[package.licence_file] = members["LICENSE"]
        for source in package.files:
            name = source.rpartition("/")[2]
            contents[name] = members[source]
            rows.append(_row(package, source, members))
            before = known.get((package.name, package.version, name))
            if before not in (None, rows[-1]["sha256"]):
                problems.append(f"{package.name} {package.version} now holds another {name} than {LISTING} lists")
    if not problems:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        (folder / LISTING).write_text(HEADER + "".join(_toml(row) for row in rows), encoding="utf-8")
    return problems


def _unpack(package: Package) -> dict[str, bytes]:
    """The members of the package that are wanted; npm itself checks the tarball against the registry's digest."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"{package.name}@{package.version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (tarball,) = Path(scratch).glob("*.tgz")
        members = {}
        with tarfile.open(tarball) as archive:
            for path in ("LICENSE", *package.files):
                member = archive.extractfile(f"package/{path}")
                if member is None:
                    raise SystemExit(f"{path} of {package.name} {package.version} is not a plain file")
                members[path] = member.read()
    return members


def _row(package: Package, source: str, members: dict[str, bytes]) -> dict[str, str]:
    return {
        "file": source.rpartition("/")[2],
        "name": package.name,
        "version": package.version,
        "url": package.url,
        "source": source,
        "sha256": _sha256(members[source]),
        "licence": package.licence,
        "licence_file": package.licence_file,
        "licence_sha256": _sha256(members["LICENSE"]),
    }


def _listed(folder: Path) -> list[dict[str, str]]:
    listing = folder / LISTING
    return tomllib.loads(listing.read_text(encoding="utf-8"))["vendored"] if listing.exists() else []


def _toml(row: dict[str, str]) -> str:
    return "\n[[vendored]]\n" + "".join(f'{key} = "{value}"\n' for key, value in row.items())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
