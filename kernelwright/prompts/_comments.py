"""Removes comments: from Python by its syntax tree (by tokens if it does not parse), from C and C++ by a tokenizer."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from kernelwright.records import sha256_text

__all__ = ["uncommented_c", "uncommented_python"]

_C_TOKEN = re.compile(
    r"""(?P<raw>R"(?P<end>[^\s()\\]{0,16})\(.*?\)(?P=end)")
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<number>\b\d(?:'?[\w.])*)
      | (?P<char>'(?:\\.|[^'\\\n])+')
      | (?P<header>^[ \t]*\#[ \t]*include[ \t]*<[^>\n]*>)
      | (?P<line>/(?:\\[ \t]*\n)*/(?:\\[ \t]*\n|[^\n])*)
      | (?P<block>/(?:\\[ \t]*\n)*\*.*?(?:\*/|\Z))""",
    re.X | re.S | re.M,
)
_DIRECTIVE = re.compile(r"#[ \t]*(?:include|define|undef|if|ifn?def|el(?:if|se)|endif|pragma|error|line)\b")


def uncommented_c(text: str) -> str:
    """C, C++ or CUDA without comments. Lines that held only a comment are removed; all other lines stay."""
    mark = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)

    def replaced(token: re.Match[str]) -> str:
        return mark if token.lastgroup in ("line", "block") else token[0]

    marked = _C_TOKEN.sub(replaced, text)
    if mark not in marked:
        return text
    # A comment alone on its line goes with the line, unless a macro's definition continues there.
    marked = re.sub(rf"(?m)(?<!\\\n)^[ \t]*{mark}[ \t{mark}]*(?:\n|\Z)", "", marked)
    marked = re.sub(rf"(?m)[ \t]*{mark}[ \t{mark}]*$", "", marked)
    marked = re.sub(rf"(?m)(^|[ \t])(?:{mark}[ \t]*)+", r"\1", marked)
    return re.sub(rf"{mark}+(?=[ \t])", "", marked).replace(mark, " ")


def uncommented_python(source: str) -> tuple[str, bool]:
    """The source without comments, and whether all of them could be found."""
    try:
        return _by_tree(source), True
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _by_tokens(source), False


# ------------------------------------------------------------------------------------------------------ by its tree


def _by_tree(source: str) -> str:
    """The source written from its tree. Long strings are written separately: ``ast.unparse`` puts them on one line."""
    tree = ast.parse(source)
    prefix = f"text_{sha256_text(source)[:24]}_"  # a source cannot hold its own hash
    texts = _Texts(prefix)
    text = ast.unparse(ast.fix_missing_locations(texts.visit(tree)))
    return re.sub(rf"\b{prefix}(\d+)\b", lambda match: texts.literals[int(match[1])], text) + "\n"


class _Texts(ast.NodeTransformer):
    """Drops statements that are only a constant, and replaces every C or multi-line string by a name."""

    def __init__(self, prefix: str) -> None:
        self.literals: list[str] = []
        self._prefix = prefix

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements:
                kept = [statement for statement in statements if not _is_text_alone(statement)]
                setattr(node, field, kept or ([] if isinstance(node, ast.Module) else [ast.Pass()]))
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        value = node.value
        if not isinstance(value, str) or not ("\n" in value or _is_c(value)):
            return node
        return self._named(_literal(uncommented_c(value) if _is_c(value) else value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Replace an f-string. Placeholders become single characters, and those inside of comments are removed."""
        constants = "".join(filter(None, map(_text_of, node.values)))
        if not ("\n" in constants or _is_c(constants)):
            return node
        marks = (chr(code) for code in range(0xF0000, 0xFFFFD) if chr(code) not in constants)
        parts: dict[str, str] = {}
        text = ""
        for part in node.values:
            constant = _text_of(part)
            if constant is None:
                constant = next(marks)
                parts[constant] = ast.unparse(ast.JoinedStr([part]))
            text += constant
        return self._named(_formatted(uncommented_c(text) if _is_c(constants) else text, parts))

    def _named(self, literal: str) -> ast.Name:
        self.literals.append(literal)
        return ast.Name(f"{self._prefix}{len(self.literals) - 1}", ast.Load())


def _is_text_alone(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or another constant that does nothing."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.JoinedStr):
        return all(isinstance(part, ast.Constant) for part in value.values)
    return isinstance(value, ast.Constant) and value.value is not Ellipsis


def _is_c(text: str) -> bool:
    return "#include" in text or ("{" in text and ("\n" in text or ";" in text))


def _literal(value: str) -> str:
    """A literal of the value that keeps its line breaks, if possible."""
    escaped = value.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    for text in (f'r"""{value}"""', f"r'''{value}'''", f'"""{escaped}"""'):
        try:
            if ast.literal_eval(text) == value:
                return text
        except (SyntaxError, ValueError):
            continue
    return repr(value)


def _formatted(text: str, parts: dict[str, str]) -> str:
    """An f-string of the text. ``parts`` maps each mark in it to the f-string of a placeholder."""
    pieces = re.split(f"([{''.join(parts)}])", text) if parts else [text]
    fields = [parts[piece][2:-1] if piece in parts else piece.replace("{", "{{").replace("}", "}}") for piece in pieces]
    body = "".join(fields)
    for literal in (f'rf"""{body}"""', f"rf'''{body}'''"):
        if "\\" not in "".join(fields[1::2]) and _is_formatted(literal, [piece for piece in pieces if piece]):
            return literal
    nodes = [f"f{parts[piece][1:]}" if piece in parts else repr(piece) for piece in pieces if piece]
    return f"({' '.join(nodes)})"


def _is_formatted(literal: str, pieces: list[str]) -> bool:
    """Whether a literal parses to the same number of parts that it was made of, and to the same constants."""
    try:
        node = ast.parse(literal, mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(node, ast.JoinedStr) or len(node.values) != len(pieces):
        return False
    return all(_text_of(part) in (None, piece) for part, piece in zip(node.values, pieces, strict=True))


def _text_of(part: ast.expr) -> str | None:
    """The text of a constant part of an f-string; None for a placeholder."""
    return str(part.value) if isinstance(part, ast.Constant) else None


# ---------------------------------------------------------------------------------------------------- by its tokens


def _by_tokens(source: str) -> str:
    """Source that does not parse, without comments: by its tokens while they last, then line by line."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    out, last = [], 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(source, newline="").readline):
            begin = starts[min(token.start[0] - 1, len(lines))] + token.start[1]
            end = starts[min(token.end[0] - 1, len(lines))] + token.end[1]
            if token.type == tokenize.COMMENT:
                out.append(source[last:begin].rstrip(" \t"))
                last = end
            elif token.type == tokenize.STRING and _is_c(token.string):
                out += [source[last:begin], uncommented_c(token.string)]
                last = end
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return "".join(out) + "".join(map(_uncommented_line, uncommented_c(source[last:]).splitlines(keepends=True)))


def _uncommented_line(line: str) -> str:
    """A line, read without its context, without the comment that its own tokens show. C directives stay."""
    text = line.strip()
    if not text or _DIRECTIVE.match(text):
        return line
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                kept = text[: token.start[1]].rstrip()
                return f"{line[: len(line) - len(line.lstrip())]}{kept}\n" if kept else ""
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return line
