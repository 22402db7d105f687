"""A small preprocessor that expands the macros of a source, pasting and quoting names: ``sys##tem`` becomes ``system``.

Conditionals are ignored: a definition holds from its line on, wherever it stands. Work is bounded. Text beyond the
bound stays as it is; the compiler in its sandbox meets bounds, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelwright.evaluator.screen.text import Reading, Token, split_directive, tokenize

_TOKENS = 200_000  # tokens that expansions of one source may read and yield
_DEPTH = 24  # levels of arguments within arguments
_CHAIN = 64  # macros in a chain in which each comes from the body of the one before
_DEFINITION = re.compile(r"([A-Za-z_$][\w$]*)(?:\(([^()]*)\))?(.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_PASTES = ("##", "%:%:")
_QUOTES = ("#", "%:")


class _Macro(NamedTuple):
    """parameters: None if the macro is used without parentheses. If variadic, the last one takes all that remain."""

    parameters: tuple[str, ...] | None
    variadic: bool
    body: tuple[Token, ...]


_Hidden = frozenset[str]  # macros that produced a token: they are not expanded in it again
_Pending = list[tuple[Token, _Hidden]]  # the next token is the last one


def expand(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with all macros of the source expanded and no directives; empty if it defines no macros."""
    if not any(token.kind == "directive" and split_directive(token.text)[0] == "define" for token in tokens):
        return []
    return _Expander().source(tokens)


class _Expander:
    def __init__(self) -> None:
        self._macros: dict[str, _Macro] = {}
        self._left = _TOKENS

    def source(self, tokens: Sequence[Token]) -> list[Token]:
        expanded: list[Token] = []
        run: list[Token] = []
        for token in tokens:
            if token.kind != "directive":
                run.append(token)
                continue
            name, rest = split_directive(token.text)
            if name in ("define", "undef"):
                expanded += self._expand(run, 0)
                run = []
                if name == "define":
                    self._define(rest)
                else:
                    self._macros.pop(rest, None)
        return expanded + self._expand(run, 0)

    def _define(self, rest: str) -> None:
        match = _DEFINITION.match(rest)
        if match is None:
            return
        parameters, variadic = None, False
        if match[2] is not None:
            names = [name.strip() for name in match[2].split(",")] if match[2].strip() else []
            variadic = bool(names) and names[-1].endswith("...")
            if variadic:
                names[-1] = names[-1].removesuffix("...").strip() or "__VA_ARGS__"
            parameters = tuple(names)
        # A blank before the body keeps a first # from being read as a directive.
        self._macros[match[1]] = _Macro(parameters, variadic, tuple(tokenize(Reading("0 " + match[3])))[1:])

    def _expand(self, tokens: Sequence[Token], depth: int, hidden: _Hidden = frozenset()) -> list[Token]:
        pending: _Pending = [(token, hidden) for token in reversed(tokens)]
        done: list[Token] = []
        while pending:
            token, within = pending.pop()
            macro = self._macros.get(token.text) if token.kind == "word" and token.text not in within else None
            if macro is None or self._left <= 0 or depth > _DEPTH or len(within) > _CHAIN:
                done.append(token)
                continue
            arguments: dict[str, list[Token]] = {}
            if macro.parameters is not None:
                given = self._arguments(pending)
                if given is None:
                    done.append(token)
                    continue
                arguments = _named(macro, given)
            result = self._substitute(macro, arguments, depth, within)
            inner = within | {token.text}
            pending += [(part._replace(line=token.line), inner) for part in reversed(result)]
        return done

    def _arguments(self, pending: _Pending) -> list[list[Token]] | None:
        """Take the parenthesised arguments that come next off ``pending``; None, and nothing is taken, without any."""
        if not pending or pending[-1][0].text != "(" or pending[-1][0].kind != "mark":
            return None
        arguments: list[list[Token]] = [[]]
        depth = 0
        for at in range(len(pending) - 1, -1, -1):
            self._left -= 1
            token = pending[at][0]
            mark = token.text if token.kind == "mark" else ""
            depth += (mark == "(") - (mark == ")")
            if depth == 0:
                del pending[at:]
                return arguments
            if mark == "," and depth == 1:
                arguments.append([])
            elif depth > 1 or mark != "(":
                arguments[-1].append(token)
        return None

    def _substitute(
        self, macro: _Macro, arguments: Mapping[str, list[Token]], depth: int, within: _Hidden
    ) -> list[Token]:
        """The body with arguments in place of parameters. Arguments next to ``##`` and ``#`` are not expanded."""
        result: list[Token] = []
        body, i = macro.body, 0
        while i < len(body) and self._left > 0:
            token = body[i]
            self._left -= 1 + len(arguments.get(token.text, ()))
            pasted = i + 1 < len(body) and body[i + 1].text in _PASTES
            if token.text in _PASTES and token.kind == "mark" and i + 1 < len(body):
                following = arguments.get(body[i + 1].text, [body[i + 1]])
                result = _paste(result, following)
                i += 2
                continue
            if token.text in _QUOTES and token.kind == "mark" and i + 1 < len(body) and body[i + 1].text in arguments:
                result.append(Token("string", _quoted(arguments[body[i + 1].text]), token.line))
                i += 2
                continue
            argument = arguments.get(token.text) if token.kind == "word" else None
            if argument is None:
                result.append(token)
            else:
                result += argument if pasted else self._expand(argument, depth + 1, within)
            i += 1
        return result


def _named(macro: _Macro, given: list[list[Token]]) -> dict[str, list[Token]]:
    """Arguments by parameter; ``__VA_ARGS__`` takes the remaining ones, commas included."""
    names = macro.parameters or ()
    named = {name: given[i] if i < len(given) else [] for i, name in enumerate(names)}
    if macro.variadic and len(given) > len(names):
        rest: list[Token] = []
        for argument in given[len(names) - 1 :]:
            rest += [*([Token("mark", ",", 0)] if rest else []), *argument]
        named[names[-1]] = rest
    return named


def _paste(before: list[Token], after: Sequence[Token]) -> list[Token]:
    """Join the last token of ``before`` and the first of ``after`` into one."""
    if not before or not after:
        return [*before, *after]
    text = before[-1].text + after[0].text
    kind = "word" if _WORD.fullmatch(text) else "mark"
    return [*before[:-1], Token(kind, text, before[-1].line), *after[1:]]


def _quoted(tokens: Sequence[Token]) -> str:
    """The text that ``#`` makes of an argument; blanks stand only between words."""
    text = ""
    for token in tokens:
        text += " " if text[-1:].isalnum() and token.text[:1].isalnum() else ""
        text += f'"{token.text}"' if token.kind == "string" else token.text
    return text
