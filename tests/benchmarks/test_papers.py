"""The pages of the papers: current, and every row leads somewhere."""

import re

import pytest

from benchmarks import papers
from benchmarks.lab import study as studies
from benchmarks.lab.provenance import ROOT
from equipoise.cli.options import parse_run_options
from equipoise.cli.parser import Parser
from equipoise.settings.experiment_config import ExperimentConfig

CLAIMS = [(paper.name, claim) for paper in papers.PAPERS for claim in paper.claims]
NAMES = [f"{name}-{number}" for number, (name, _) in enumerate(CLAIMS)]


@pytest.mark.parametrize("paper", papers.PAPERS, ids=lambda paper: paper.name)
def test_a_page_is_what_its_cells_say(paper: papers.Paper) -> None:
    assert (papers.FOLDER / f"{paper.name}.md").read_text() == paper.page()


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=NAMES)
def test_the_code_that_a_claim_names_is_there(name: str, claim: papers.Claim) -> None:
    path, _, item = claim.code.partition(" ")
    text = (ROOT / "src" / "equipoise" / path).read_text()
    assert all(part in text for part in item.split(".") if part)


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=NAMES)
def test_a_command_is_one_that_a_reader_can_type(name: str, claim: papers.Claim) -> None:
    words = claim.command.split()
    if words[:2] == ["equipoise", "run"]:
        _, given = parse_run_options(Parser("run"), words[2:])
        ExperimentConfig.from_options(given)
    elif words[:3] == ["python", "-m", "benchmarks"]:
        assert words[3] in studies.names()
    else:
        module = re.fullmatch(r"python -m (benchmarks\.[\w.]+)", claim.command)
        known = module and (ROOT / f"{module[1].replace('.', '/')}.py").is_file()
        assert known or words[:2] == ["equipoise", "certify"]


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=NAMES)
def test_a_verdict_is_one_of_five(name: str, claim: papers.Claim) -> None:
    assert claim.verdict.partition(":")[0] in papers.VERDICTS
