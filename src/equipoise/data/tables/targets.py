"""What the target is, from the counts of all clients; where that is not clear, a question instead of a guess."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.data.federated_dataset import Kind, Target
from equipoise.data.tables.cells import NO_NUMBER, spelled
from equipoise.data.tables.choices import ColumnChoices
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.rule import NO, YES, Rule
from equipoise.data.tables.statistics import ColumnStatistics, Moments, Statistics, merged

MANY_NUMBERS = 20  # different numbers, above which a target is hardly a class
MANY_CLASSES = 1000


def decide_target(
    messages: Sequence[Statistics], rule: Rule, choices: ColumnChoices
) -> tuple[Target | None, list[Finding]]:
    """The target, or the reasons why there is none."""
    about = merged([message.target[0] for message in messages])
    kind: Kind = "survival" if rule.event or choices.kind == "survival" else "classification"
    if choices.kind == "regression":
        kind = "regression"
    findings = _unreadable(about, rule, kind)
    if kind == "survival":
        findings += _events(messages, rule)
    if findings:
        return None, findings
    if kind != "classification":
        moments = _together(messages)
        if kind == "regression" and not moments.squares > 0:
            return None, [_problem(rule, "has one value only: there is nothing to predict")]
        if kind == "regression":
            return Target(kind, rule.name, mean=moments.mean, scale=moments.deviation), []
        if about.rounded and about.rounded[0][0] < 0:
            return None, [_problem(rule, "has times below 0: survival counts from 0 on")]
        return Target(kind, rule.name, event=rule.event), []
    if rule.sign:
        return Target(kind, rule.name, rule.classes), []
    return _classes(about, rule, choices)


def _classes(
    about: ColumnStatistics, rule: Rule, choices: ColumnChoices
) -> tuple[Target | None, list[Finding]]:
    different = len(about.rounded) + len(about.texts)
    measured = about.numbers.count and (
        not about.whole or not about.exact or len(about.rounded) > MANY_NUMBERS
    )
    if measured and not choices.kind:
        return None, [
            _problem(
                rule,
                f"has {len(about.rounded)} or more different numbers: say --kind regression, or --target "
                f'"{rule.column} > {spelled(about.median)}" for two classes, or --kind classification',
                "--kind regression",
            )
        ]
    if about.withheld or not about.exact or different > MANY_CLASSES:
        return None, [_problem(rule, "has too many different values for classes")]
    if different < 2:
        return None, [_problem(rule, "has one value only: there is nothing to tell apart")]
    texts = [text for text, _ in about.texts]
    return Target(
        "classification", rule.name, (*(spelled(v) for v, _ in about.rounded), *texts)
    ), []


def _unreadable(about: ColumnStatistics, rule: Rule, kind: Kind) -> list[Finding]:
    if about.rows == about.missing:
        return [_problem(rule, "is empty: there is nothing to learn from")]
    measured = kind != "classification" or rule.sign in (">=", "<=", ">", "<")
    words = [text for text, _ in about.texts if text.lower() not in NO_NUMBER]
    if measured and (words or about.withheld):
        shown = ", ".join(map(repr, words[:3])) or "texts"
        return [
            _problem(
                rule, f"holds {shown}, which are no numbers: clean it, or choose another target"
            )
        ]
    return []


def _events(messages: Sequence[Statistics], rule: Rule) -> list[Finding]:
    if not rule.event:
        return [
            _problem(
                rule, "is a time of survival, and --event is not given: name the column of events"
            )
        ]
    about = merged([message.target[1] for message in messages])
    values = {spelled(v) for v, _ in about.rounded} | {text.lower() for text, _ in about.texts}
    odd = sorted(values - YES - NO)
    if odd or about.withheld or not values & YES:
        seen = ", ".join(map(repr, odd[:3])) or "no 1"
        words = (
            f"holds {seen}: an event is 1 where it was seen and 0 where not, and some must be seen"
        )
        return [Finding(words, True, column=rule.event)]
    return []


def _together(messages: Sequence[Statistics]) -> Moments:
    total = messages[0].trained
    for message in messages[1:]:
        total = total + message.trained
    return total


def _problem(rule: Rule, words: str, option: str = "") -> Finding:
    return Finding(f"the target {words}", True, column=rule.column, option=option)
