"""The house: which room may look into which, read from the sources: a wrong import fails here.

Arrows go one way, from rlkf.py down to lm/. A module that the `__main__` block of a command imports
does not count: there the method hands over to the command line around it.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
METHOD = ("probe", "dreamcatcher", "reward", "ppo")
ROOMS = (
    "rlkf",
    "experiment",
    "baselines",
    *METHOD,
    "evaluation",
    "data",
    "reading",
    "embed",
    "lm",
)  # from the top down
MAY_SEE = {  # a room may import from itself, and from these
    "rlkf": {"experiment", *METHOD, "embed", "evaluation", "data", "reading", "lm"},
    "experiment": {"baselines", *METHOD, "embed", "evaluation", "data", "reading", "lm"},
    "baselines": {*METHOD, "embed", "evaluation", "reading", "lm"},
    **dict.fromkeys(METHOD, {"embed", "evaluation", "reading", "lm"}),
    "evaluation": {"data", "reading", "embed", "lm"},
    "data": {"reading", "lm"},
    "reading": {"embed", "lm"},
    "embed": {"lm"},
    "lm": set(),
}


def is_main_block(node):
    """True for `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def imported(tree):
    """Dotted names that a module imports anywhere but in its `__main__` block."""
    for node in tree.body:
        for inner in () if is_main_block(node) else ast.walk(node):
            if isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)
            if isinstance(inner, ast.ImportFrom):
                yield from (f"{inner.module}.{alias.name}" for alias in inner.names)


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def sources(root=ROOT):
    """{module: syntax tree} of the project's own modules, without its tests."""
    paths = [*root.glob("*.py"), *(path for room in ROOMS for path in (root / room).glob("**/*.py"))]
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def arrows(trees):
    """{module: the project's modules that it imports}."""
    own = lambda name: next((n for n in (name, name.rpartition(".")[0]) if n in trees), None)
    return {module: {own(name) for name in imported(tree)} - {None, module} for module, tree in trees.items()}


def wrong(found):
    """Arrows (from, to) between rooms that may not see each other."""
    room = lambda module: module.split(".")[0]
    pairs = [(a, b) for a, seen in found.items() for b in seen if room(a) != room(b)]
    return [(a, b) for a, b in pairs if room(b) not in MAY_SEE[room(a)]]


def circle(found):
    """A list of modules that import each other in a circle; empty where there is none."""
    done = set()

    def walk(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        rounds = next((r for r in (walk(b, [*path, module]) for b in sorted(found[module])) if r), [])
        done.add(module)
        return rounds

    return next((r for r in (walk(module, []) for module in sorted(found)) if r), [])


def test_the_six_modules_of_the_method_stand_alone_at_the_front_door():
    assert {p.stem for p in ROOT.glob("*.py")} == {"rlkf", "embed", *METHOD}


def test_arrows_between_rooms_go_one_way_and_modules_make_no_circle():
    found = arrows(sources())
    assert len(found) > 40 and wrong(found) == [] and circle(found) == []


def test_every_room_says_in_a_sentence_what_it_is():
    for room in ("lm", "reading", "data", "evaluation", "baselines", "experiment"):
        text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
        assert text and text.endswith(".")


@pytest.mark.parametrize(
    "module, line, seen",
    [
        ("probe", "from experiment.runs import Run", ("probe", "experiment.runs")),
        ("ppo", "def f():\n    import data.files", ("ppo", "data.files")),
        ("lm.model", "from reading import answers", ("lm.model", "reading.answers")),
        ("experiment.runs", "import rlkf", ("experiment.runs", "rlkf")),
    ],
)
def test_a_wrong_arrow_is_found(module, line, seen):
    trees = sources()
    trees[module] = ast.parse(line)
    assert seen in wrong(arrows(trees))


def test_a_circle_is_found_and_the_main_block_is_not_looked_at():
    trees = {
        "lm.a": ast.parse("from lm import b"),
        "lm.b": ast.parse("import lm.c"),
        "lm.c": ast.parse("from lm.a import x"),
    }
    assert circle(arrows(trees)) == ["lm.a", "lm.b", "lm.c", "lm.a"]
    trees["lm.c"] = ast.parse("if __name__ == '__main__':\n    import lm.a")
    assert circle(arrows(trees)) == []


def test_every_line_fits():
    """What the formatter passes over, such as a pattern without a space, counts too."""
    paths = [path for path in ROOT.glob("**/*.py") if not {".venv", "runs"} & set(path.parts)]
    wide = [f"{p.name}:{n}" for p in paths for n, line in enumerate(p.read_text().splitlines(), 1) if len(line) > 120]
    assert len(paths) > 100 and wide == []
