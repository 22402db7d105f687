"""Removes what must not leave the machine: file paths and keys."""

from __future__ import annotations

import functools
import re

__all__ = ["PATH", "SECRET", "reveals", "scrub"]

PATH = "<path>"
SECRET = "<secret>"

_TAIL = r"[^\s'\"`<>|;,:()\[\]{}]*"
_PRIVATE = r"(?:home|root|Users|tmp|var|private|mnt|media|srv|work|workspaces?|scratch|content|kaggle|data)"
# In prose, everything that looks like an absolute path; a flag may stand directly before it.
_ANY_PATH = re.compile(
    rf"file://{_TAIL}|(?:(?<![\w.)\]/])|(?<=-[ILB]))/[\w.+@-]+/{_TAIL}|(?<![\w.)\]/])/(?:home|root|Users)\b"
    rf"|(?<![\w~.)\]/])~[\w-]*/[\w.]{_TAIL}|\b[A-Za-z]:\\[\w .-]+\\{_TAIL}"
)
# In code, where a slash divides, only paths in private folders. (The pattern begins with the slash, which is fast.)
_OWN_PATH = re.compile(rf"/(?:(?<![\w.)\]/]/)|(?<=-[ILB]/)){_PRIVATE}/[\w.+@-]")
_OWN_DRIVE = re.compile(r":\\Users\\")
_KEY = re.compile(
    r"\b(?:sk|rk|pk)-[\w-]{16,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bkw_[\w-]{20,}|\bglpat-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bxox[abprs]-[\w-]{10,}"
    r"|(?i:\bbearer\s+)[\w.~+/-]{16,}=*|(?i:\b(?:api[_-]?key|secret|password|token)\s*[=:]\s*)['\"]?[\w.~+/-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


# Every key has one of these words. Searching for the words is much faster than searching for keys.
_NEAR_KEYS = (
    "sk-", "rk-", "pk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "kw_", "glpat-", "akia", "aiza",
    "xox", "bearer", "api", "secret", "password", "token", "private key",
)  # fmt: skip


def scrub(text: str) -> str:
    """A text in prose with absolute paths and keys replaced."""
    bare = _KEY.sub(SECRET, text) if _may_hold_key(text) else text
    return _ANY_PATH.sub(PATH, bare) if "/" in bare or "\\" in bare else bare


@functools.lru_cache(maxsize=1024)  # a kernel is checked for several rows
def reveals(source: str) -> bool:
    """Whether code contains a private path or a key.

    Code is never rewritten, because its exact text was judged. Code that reveals something is left out instead.
    """
    return bool(_OWN_PATH.search(source) or _OWN_DRIVE.search(source)) or (
        _may_hold_key(source) and bool(_KEY.search(source))
    )


def _may_hold_key(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in _NEAR_KEYS)
