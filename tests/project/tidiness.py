"""The rules of tidiness: each looks at one file and returns its offences as "path:line: sentence"."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

LONGEST_MODULE_LINES = 450

_TEXT_SUFFIXES = {".cfg", ".ini", ".json", ".md", ".py", ".toml", ".txt", ".typed", ".yaml", ".yml"}
_TEXT_NAMES = {".editorconfig", ".gitignore", "LICENSE", "Makefile", "run"}
_HIDDEN_FOLDERS_THAT_COUNT = {".ci", ".github"}
_FOLDERS_MADE_BY_TOOLS = {"__pycache__", "build", "dist"}

_WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
_UNPICKLERS = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
_SHIRKERS = {"skip", "skipif", "importorskip", "xfail", "skipTest", "skipIf", "skipUnless", "expectedFailure"}
# Written so that the rule does not find itself.
_PROMISE = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X)\b")
_VAGUE_NAME = re.compile(r"Manager|Helper|Util|Impl(?![a-z])")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_MAKE = re.compile(r"\bmake +([a-z][a-z0-9-]*)")
_TARGET = re.compile(r"^([a-z][a-z0-9-]*):(?!=)(.*)$")


@dataclass(frozen=True)
class Page:
    """One text file of the project; the path is relative to the root of the tree."""

    root: Path
    path: Path

    @cached_property
    def text(self) -> str:
        return (self.root / self.path).read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def is_markdown(self) -> bool:
        return self.path.suffix == ".md"

    def within(self, folder: str) -> bool:
        return self.path.parts[0] == folder

    @property
    def is_product(self) -> bool:
        """Whether it is held to the rules for source: the package, and the simulation beside it."""
        return self.within("src") or self.within("simulation")

    def offence(self, line: int, sentence: str) -> str:
        return f"{self.path.as_posix()}:{line}: {sentence}"


Rule = Callable[[Page], Iterator[str]]


def pages(root: Path) -> list[Page]:
    """Every text file of the tree, without what tools leave behind."""
    return [Page(root, path.relative_to(root)) for path in sorted(_walk(root)) if _is_text(path)]


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if not path.is_dir():
            yield path
        elif path.name in _HIDDEN_FOLDERS_THAT_COUNT or not (
            path.name.startswith(".") or path.name in _FOLDERS_MADE_BY_TOOLS
        ):
            yield from _walk(path)


def _is_text(path: Path) -> bool:
    return path.suffix in _TEXT_SUFFIXES or path.name in _TEXT_NAMES


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a plain chain of names, else what is known of its end."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
        case _:
            return ""


def _end_of(dotted: str, parts: int) -> str:
    return ".".join(dotted.split(".")[-parts:])


# Source ---------------------------------------------------------------------------------------------------------------


def module_opens_with_docstring(page: Page) -> Iterator[str]:
    if page.is_product and page.is_python and ast.get_docstring(page.tree) is None:
        yield page.offence(1, "the module does not open with a docstring that states its rule")


def public_names_have_docstrings(page: Page) -> Iterator[str]:
    """Functions and classes of a module; a method's signature may well be its whole contract."""
    if not (page.is_product and page.is_python):
        return
    for node in page.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                overload = not isinstance(node, ast.ClassDef) and any(
                    _end_of(_dotted(decorator), 1) == "overload" for decorator in node.decorator_list
                )
                if not node.name.startswith("_") and not overload and ast.get_docstring(node) is None:
                    yield page.offence(node.lineno, f"`{node.name}` is public and has no docstring")


def class_names_say_something(page: Page) -> Iterator[str]:
    if page.is_python:
        for node in ast.walk(page.tree):
            if isinstance(node, ast.ClassDef) and (vague := _VAGUE_NAME.search(node.name)):
                yield page.offence(node.lineno, f"`{node.name}`: {vague[0]} says nothing; use a noun of the domain")


def module_is_short(page: Page) -> Iterator[str]:
    if page.is_product and page.is_python and len(page.text.splitlines()) > LONGEST_MODULE_LINES:
        yield page.offence(
            LONGEST_MODULE_LINES + 1, f"the module has more than {LONGEST_MODULE_LINES} lines; it is two modules"
        )


def nobody_reads_the_wall_clock(page: Page) -> Iterator[str]:
    # The recorder and `--json` stamp what people and programs read; nothing is decided by it.  A deadline of PyTorch's is a
    # time of the wall clock, and is made and met in one process.  A certificate's dates are of the wall clock.
    exempt = (
        "rallypoint/events.py",
        "legacy_etcd/phases.py",
        "cli/as_json.py",
        "cli/certificates.py",
        "rallypoint/tls.py",
    )
    if page.is_product and page.is_python and not page.path.as_posix().endswith(exempt):
        for node in ast.walk(page.tree):
            if isinstance(node, ast.Call) and _end_of(_dotted(node.func), 2) in _WALL_CLOCKS:
                yield page.offence(node.lineno, f"`{_dotted(node.func)}()` reads the wall clock")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                for name in node.names:
                    if f"time.{name.name}" in _WALL_CLOCKS:
                        yield page.offence(node.lineno, f"`time.{name.name}` is the wall clock")


def nothing_is_unpickled(page: Page) -> Iterator[str]:
    if page.is_product and page.is_python:
        for node in ast.walk(page.tree):
            match node:
                case ast.Import(names=names):
                    modules = [name.name for name in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case _:
                    continue
            for module in modules:
                if module.split(".")[0] in _UNPICKLERS:
                    yield page.offence(node.lineno, f"`{module}` is imported; nothing is unpickled, ever")


def folder_is_a_package(page: Page) -> Iterator[str]:
    """A folder without __init__.py would escape the layers' contracts."""
    if page.is_python and page.path.parts[0] in ("src", "simulation", "tests", "benchmarks"):
        folder = page.root / page.path.parent
        if not (folder / "__init__.py").exists():
            yield page.offence(1, "the module's folder has no __init__.py")


# Tests ----------------------------------------------------------------------------------------------------------------


def tests_do_not_sleep(page: Page) -> Iterator[str]:
    if page.within("tests") and page.is_python:
        for node in ast.walk(page.tree):
            if isinstance(node, ast.Call) and _end_of(_dotted(node.func), 1) == "sleep":
                yield page.offence(node.lineno, "the test sleeps; let it wait for what it expects")


def tests_do_not_shirk(page: Page) -> Iterator[str]:
    """No skip, no expected failure: what is missing fails."""
    if page.within("tests") and page.is_python:
        for node in ast.walk(page.tree):
            if isinstance(node, ast.Attribute) and node.attr in _SHIRKERS:
                root = _dotted(node).split(".")[0]
                if root in ("pytest", "unittest", "mark", "self"):
                    yield page.offence(node.lineno, f"`{_dotted(node)}`: a test passes or fails, it is not set aside")
            if isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest"):
                for name in node.names:
                    if name.name in _SHIRKERS:
                        yield page.offence(node.lineno, f"`{name.name}`: a test passes or fails, it is not set aside")


# All text -------------------------------------------------------------------------------------------------------------


def nothing_is_left_for_later(page: Page) -> Iterator[str]:
    for number, line in enumerate(page.lines, 1):
        if promise := _PROMISE.search(line):
            yield page.offence(number, f"{promise[0]}: do it now, or open an issue")


def lines_end_cleanly(page: Page) -> Iterator[str]:
    for number, line in enumerate(page.lines, 1):
        if line != line.rstrip():
            yield page.offence(number, "white space at the end of the line")


def file_ends_with_one_newline(page: Page) -> Iterator[str]:
    if page.text and not page.text.endswith("\n"):
        yield page.offence(len(page.lines), "the file does not end with a newline")
    if page.text.endswith("\n\n"):
        yield page.offence(len(page.lines) - 1, "the file ends with empty lines")


# Documents ------------------------------------------------------------------------------------------------------------


def relative_links_lead_somewhere(page: Page) -> Iterator[str]:
    if not page.is_markdown:
        return
    for number, line in _prose(page):
        for link in _LINK.findall(line):
            target = unquote(link.partition("#")[0])
            elsewhere = re.match(r"[a-z][a-z0-9+.-]*:", target)
            if target and not elsewhere and not (page.root / page.path.parent / target).exists():
                yield page.offence(number, f"the link to {link} leads nowhere")


def make_targets_in_documents_exist(page: Page) -> Iterator[str]:
    """Of what documents show as code, `make something` is to be a target of the Makefile."""
    if not page.is_markdown:
        return
    targets = set(make_targets(page.root))
    for number, code in _code(page):
        for target in _MAKE.findall(code):
            if target not in targets:
                yield page.offence(number, f"`make {target}` is no target of the Makefile")


def make_targets_explain_themselves(page: Page) -> Iterator[str]:
    if page.path == Path("Makefile"):
        for number, line in enumerate(page.lines, 1):
            if (target := _TARGET.match(line)) and "## " not in target[2]:
                yield page.offence(number, f"the target {target[1]} has no line in `make help`")


def make_targets(root: Path) -> list[str]:
    """The targets of the Makefile that have a name to call them by."""
    lines = (root / "Makefile").read_text(encoding="utf-8").splitlines()
    return [target[1] for line in lines if (target := _TARGET.match(line))]


def _fenced(page: Page) -> Iterator[tuple[int, str, bool]]:
    """Each line with its number and whether it stands in a fenced block."""
    fenced = False
    for number, line in enumerate(page.lines, 1):
        if _FENCE.match(line):
            fenced = not fenced
        else:
            yield number, line, fenced


def _prose(page: Page) -> Iterator[tuple[int, str]]:
    for number, line, fenced in _fenced(page):
        if not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def _code(page: Page) -> Iterator[tuple[int, str]]:
    for number, line, fenced in _fenced(page):
        if fenced:
            yield number, line.partition("#")[0]
        else:
            yield from ((number, code) for code in re.findall(r"`([^`]*)`", line))


RULES: tuple[Rule, ...] = (
    module_opens_with_docstring,
    public_names_have_docstrings,
    class_names_say_something,
    module_is_short,
    nobody_reads_the_wall_clock,
    nothing_is_unpickled,
    folder_is_a_package,
    tests_do_not_sleep,
    tests_do_not_shirk,
    nothing_is_left_for_later,
    lines_end_cleanly,
    file_ends_with_one_newline,
    relative_links_lead_somewhere,
    make_targets_in_documents_exist,
    make_targets_explain_themselves,
)


def class_names_used_twice(root: Path) -> dict[str, list[str]]:
    """The classes of the package that share a name, each with the files that it is in: they are two things, or one too many."""
    found: dict[str, list[str]] = {}
    for page in pages(root):
        if page.within("src") and page.is_python:
            for node in page.tree.body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(page.path.as_posix())
    return {name: files for name, files in found.items() if len(files) > 1}


def offences(rule: Rule, root: Path) -> list[str]:
    """What one rule finds in the whole tree."""
    return list(chain.from_iterable(rule(page) for page in pages(root)))
