"""SPEC.md and the checks: every id is claimed by a check, and every check claims an id."""

from __future__ import annotations

import ast
import re

from surroundings import ROOT
from turngate_model import Property
from turngate_model.properties import DurableProperty

SPEC = (ROOT / "SPEC.md").read_text(encoding="utf-8")
REPORT = (ROOT / "docs" / "explanation" / "verification.md").read_text(encoding="utf-8")
REQUIREMENT = re.compile(r"^\*\*(R-[A-Z]+-\d+)\*\* ((?:.+\n)+)", re.MULTILINE)


def specified() -> set[str]:
    properties = set(re.findall(r"^\| \*\*([A-Z_]+)\*\* \|", SPEC, re.MULTILINE))
    return properties | {found[0] for found in REQUIREMENT.findall(SPEC)}


def claimed() -> set[str]:
    """Return every id in a requirement mark of any test."""
    ids: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                ids.update(
                    str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)
                )
    return ids


def test_every_id_is_claimed_and_every_claim_is_an_id() -> None:
    assert claimed() == specified()


def test_every_check_of_a_requirement_claims_one() -> None:
    tree = ast.parse((ROOT / "tests" / "project" / "test_requirements.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            assert any(mark.startswith("pytest.mark.requirement('R-") for mark in marks), node.name


def test_the_properties_of_the_model_are_those_of_the_specification() -> None:
    properties = {*map(str, Property), *map(str, DurableProperty)}
    assert {id_ for id_ in specified() if not id_.startswith("R-")} == properties


def test_a_requirement_is_one_sentence_with_one_must() -> None:
    requirements = REQUIREMENT.findall(SPEC)
    assert len(requirements) > 30
    for name, text in requirements:
        assert len(re.findall(r"\bMUST\b", text)) == 1, name
        assert text.strip().endswith("."), name
        assert ". " not in text, name


def test_ids_are_given_once() -> None:
    names = [name for name, _ in REQUIREMENT.findall(SPEC)]
    assert len(names) == len(set(names))


def test_every_must_has_an_id() -> None:
    """What MUST means is said once, in section 1; every other MUST is part of a requirement."""
    for page in ("SPEC.md", "docs/spec/port.md", "docs/spec/vectors.md", "docs/spec/http.md"):
        text = REQUIREMENT.sub("", (ROOT / page).read_text(encoding="utf-8"))
        assert len(re.findall(r"\bMUST\b", text)) == (2 if page == "SPEC.md" else 0), page


def test_it_is_the_specification_and_nothing_else() -> None:
    assert len(SPEC.splitlines()) <= 650


def test_the_score_of_the_mutants_adds_up_and_agrees_with_the_list() -> None:
    rows = re.findall(r"^\| `(_\w+)\.py` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", REPORT, re.MULTILINE)
    tool = (ROOT / "tools" / "mutants.py").read_text(encoding="utf-8")
    modules = re.findall(r'"(_\w+)"', tool.partition("MODULES: Final = (")[2].partition("\n)")[0])
    is_of_today = [module for module, *_ in rows] == modules
    assert is_of_today != ("today's modules are not counted yet" in REPORT)
    listed = (ROOT / "tools" / "equivalent_mutants.md").read_text(encoding="utf-8").split("\n## ")
    for module, *figures in rows:
        mutants, killed, equivalent, survive = map(int, figures)
        assert mutants == killed + equivalent
        assert survive == 0
        of_module = [part for part in listed if part.startswith(f"{module}.py")]
        assert equivalent == len(re.findall(r"^- line", "".join(of_module), re.MULTILINE))
