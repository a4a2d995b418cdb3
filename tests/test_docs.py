"""What the documents print can be typed, and what they name exists."""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import typer
import yaml

from sofed_flwr import policies
from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import build, trust
from sofed_flwr.config.sections import Federation
from sofed_flwr.core.records import Update
from sofed_flwr.policies.base import Policy
from sofed_flwr.strategies.inner import InnerStrategy
from tests.policies.test_policies import NAN, check_contract, kept, pool
from tests.strategies.test_contract import crowd_of, zeros_like
from tests.support.federation import ROOT, conf_names, same
from tests.support.replies import combined

DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
}
CURRENT = {name: text for name, text in DOCUMENTS.items() if name != "CHANGELOG.md"}
"""A changelog names what was."""
FLEET = "tests/launch/test_fleet_run.py"
"""What a row means by `fleet:`."""


def printed(document: str, file: str) -> str:
    """The code block that follows the name of its file."""
    found = re.search(rf"`{re.escape(file)}`.*?```\w+\n(.*?)```", DOCUMENTS[document], re.DOTALL)
    assert found is not None, f"{document} prints no {file}"
    return found[1]


# a policy of one's own


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    """The printed policy, built as any other: its file beside ours, its yaml as it stands."""
    code = printed("docs/policies.md", "sofed_flwr/policies/newest_part.py")
    (tmp_path / "newest_part.py").write_text(code)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    built: Policy = build(yaml.safe_load(printed("docs/policies.md", "conf/policy/newest_part.yaml")), "policy")
    return built


def test_the_printed_policy_keeps_the_contract(policy: Policy) -> None:
    check_contract(policy)
    entries = pool(list(range(30)), [NAN] * 30, [3] * 20 + [0] * 10)
    for capacity in (2, 3, 9, 29):
        assert len(set(kept(policy, entries, capacity))) == capacity
    for same_run in (True, False):
        assert policy.carry_over(torch.tensor([0.5, NAN]), same_run).shape == (2,)


def test_the_printed_policy_keeps_the_newest_and_draws_the_others(policy: Policy) -> None:
    """Of twelve entries, six stay: three are the newest, three are drawn from the nine older ones."""
    entries = pool(list(range(12)), [NAN] * 12, [1] * 6 + [0] * 6)
    draws = [kept(policy, entries, 6, seed=seed) for seed in range(20)]
    assert all(draw[-3:] == [9, 10, 11] for draw in draws)
    assert {image for draw in draws for image in draw[:3]} == set(range(9))


def test_the_printed_policy_is_none_of_ours(policy: Policy) -> None:
    entries = pool(list(range(12)), [0.5] * 6 + [NAN] * 6, [1] * 6 + [0] * 6)
    for name in conf_names("policy"):
        ours = build(compose([f"policy={name}"]).policy, "policy")
        assert [kept(ours, entries, 6, seed=s) for s in range(5)] != [
            kept(policy, entries, 6, seed=s) for s in range(5)
        ]


# strategies of one's own


@pytest.fixture
def _my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The printed file in a package outside this project, which the user trusts."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "damped.py").write_text(printed("docs/strategies.md", "my_package/damped.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SOFED_TRUST", "")
    trust(["my_package"])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def strategy(file: str, **changed: float) -> InnerStrategy:
    node = yaml.safe_load(printed("docs/strategies.md", file)) | changed
    built: InnerStrategy = build(node, "strategy")
    return built


def updates(*weights: list[float], variances: list[float]) -> list[Update]:
    return [
        Update(k, 1, {"w": torch.tensor(value), "b.running_var": torch.tensor([variances[k]])})
        for k, value in enumerate(weights)
    ]


@pytest.mark.usefixtures("_my_package")
def test_the_printed_damped_strategy_by_hand() -> None:
    """Rate 0.5. Mean (4, -8): half of the way from (0, 0) is (2, -4). Then a quarter of the way to (6, 0)."""
    damped = strategy("my_conf/strategy/damped.yaml", rate=0.5)
    model = {"w": torch.zeros(2), "b.running_var": torch.ones(1)}
    model = combined(damped, updates([2.0, -8.0], [6.0, -8.0], variances=[1.0, 3.0]), model)
    assert model["w"].tolist() == [2, -4]
    assert model["b.running_var"].tolist() == [2]  # the plain mean: statistics are no steps
    kept_state = damped.state_dict()
    model = combined(damped, updates([6.0, 0.0], [6.0, 0.0], variances=[4.0, 4.0]), model)
    assert model["w"].tolist() == [3, -3]
    assert model["b.running_var"].tolist() == [4]

    resumed = strategy("my_conf/strategy/damped.yaml", rate=0.5)
    resumed.load_state_dict(kept_state)
    again = {"w": torch.tensor([2.0, -4.0]), "b.running_var": torch.tensor([2.0])}
    assert combined(resumed, updates([6.0, 0.0], variances=[4.0]), again)["w"].tolist() == [3, -3]


def test_the_printed_adagrad_by_hand() -> None:
    """eta 0.1. Δ = (1, -2): v = (1, 4), a step of about eta. Then Δ = (1, 0): v = (2, 4)."""
    adagrad = strategy("strategy/adagrad.yaml", eta=0.1)
    model = {"w": torch.zeros(2), "b.running_var": torch.ones(1)}
    model = combined(adagrad, updates([0.0, -2.0], [2.0, -2.0], variances=[1.0, 3.0]), model)
    assert model["w"].tolist() == pytest.approx([0.1 * 1 / (1 + 0.001), 0.1 * -2 / (2 + 0.001)])
    assert model["b.running_var"].tolist() == [2]
    current = {"w": torch.zeros(2), "b.running_var": torch.ones(1)}
    found = combined(adagrad, updates([1.0, 0.0], variances=[1.0]), current)
    assert found["w"].tolist() == pytest.approx([0.1 * 1 / (2**0.5 + 0.001), 0])


@pytest.mark.usefixtures("_my_package")
@pytest.mark.parametrize("file", ["my_conf/strategy/damped.yaml", "strategy/adagrad.yaml"])
def test_the_printed_strategies_keep_the_contract(file: str) -> None:
    first, second = strategy(file), strategy(file)
    crowd = crowd_of(first)
    current = zeros_like(crowd[0].shared)
    found = combined(first, crowd, current)
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
        name: (t.shape, t.dtype) for name, t in current.items()
    }
    second.load_state_dict(first.state_dict())
    assert same(combined(second, crowd_of(first, 1), found), combined(first, crowd_of(first, 1), found))


# what the documents name


@cache
def names_in(file: str) -> list[str]:
    return re.findall(r"def (test_\w+)", (ROOT / file).read_text())


def named_tests(line: str) -> Iterator[tuple[str | None, str]]:
    """`x/test_y.py: test_a, test_b_...` -> the file, if the line names one, and each test after it."""
    file = None
    for found in re.finditer(r"\bfleet: |[\w/]*\btest_\w+\.py|\btest(?:_[a-z0-9]+){2,}(?:_?\.\.\.)?", line):
        name = found[0]
        if name == "fleet: ":
            file = FLEET
        elif name.endswith(".py"):
            file = name if name.startswith("tests/") else f"tests/{name}"
            yield file, ""
        else:
            yield file, name


@pytest.mark.parametrize("document", CURRENT)
def test_every_test_that_a_document_names_is_there(document: str) -> None:
    everywhere = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]
    for line in CURRENT[document].splitlines():
        for file, name in named_tests(line):
            assert file is None or file in everywhere, f"{document}: there is no {file}"
            known = [test for one in ([file] if file else everywhere) for test in names_in(one)]
            begins = name.removesuffix("...")
            there = [test for test in known if test.startswith(begins) and (name.endswith("...") or test == name)]
            assert there or not name, f"{document}: {file or 'no file'} has no {name}"


def test_a_test_that_is_not_there_would_be_noticed() -> None:
    line = "| fleet: `test_a_b_...`; `server/test_gate.py: test_c_d_...`, `test_e_f`; `test_images` are data |"
    assert list(named_tests(line)) == [
        (FLEET, "test_a_b_..."),
        ("tests/server/test_gate.py", ""),
        ("tests/server/test_gate.py", "test_c_d_..."),
        ("tests/server/test_gate.py", "test_e_f"),
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", DOCUMENTS[document]):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), f"{document}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, f"{document}: {target}#{anchor}"


@pytest.mark.parametrize("document", CURRENT)
def test_every_path_of_the_package_is_there(document: str) -> None:
    """Also as in algorithm.md, without the package; what a reader is to write is printed below its name."""
    own = set(re.findall(r"`([\w/.]+)`[^\n]*\n\n```", DOCUMENTS[document]))
    for path in re.findall(r"`([a-z_]+/[\w/]*\.(?:py|yaml))`", CURRENT[document]):
        places = [ROOT / path, ROOT / "sofed_flwr" / path, ROOT / "tests" / path]
        is_own = path in own or Path(path).name in {Path(other).name for other in own}
        assert is_own or any(place.exists() for place in places), f"{document}: {path}"


@pytest.mark.parametrize("document", CURRENT)
def test_every_name_beside_a_file_of_the_package_is_in_it(document: str) -> None:
    """As algorithm.md says where a step is: `policies/importance.py` `Importance.select`."""
    for path, name in re.findall(r"`([a-z_]+/[\w/]*\.py)` `([\w.]+)`", CURRENT[document]):
        text = next(place / path for place in (ROOT / "sofed_flwr", ROOT) if (place / path).exists()).read_text()
        for part in name.split("."):
            assert re.search(rf"^ *(?:class|def) {part}\b", text, re.MULTILINE), f"{document}: {path} has no {name}"


@pytest.mark.parametrize("document", CURRENT)
def test_every_command_and_key_is_there(document: str) -> None:
    group = typer.main.get_command(app)
    commands = getattr(group, "commands")  # noqa: B009 (typer's own copy of click has no types)
    for name, rest in re.findall(r"(?:^    |`)(?:\S+=\S+ )*sofed ([a-z]+)([^`#\n]*)", CURRENT[document], re.MULTILINE):
        assert name in commands, f"{document}: sofed {name}"
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        for option in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", rest.split('"')[0]):
            assert option in known, f"{document}: sofed {name} {option}"
    for key in re.findall(r"\bfederation\.(\w+)", CURRENT[document]):
        assert key in Federation.model_fields, f"{document}: federation.{key}"


@pytest.mark.parametrize("document", CURRENT)
def test_the_overrides_of_every_printed_run_exist(document: str) -> None:
    """But for those with options: sweeps, fleets, yamls of one's own."""
    for line in re.findall(r"^    sofed run ([^#\n]*)", CURRENT[document], re.MULTILINE):
        if not re.search(r"\bresume=|(?<!\S)-", line):
            compose(line.split())


WORDS = "diary|diaries|jury|liars?|judge[sd]?|told_by|novelty|discretion|make way|for want of|is missed|the list allows"
"""Private words that readers would have to decode."""


@pytest.mark.parametrize("folder", ["sofed_flwr", "conf", "tests", "docs", "examples", "."])
def test_plain_words_everywhere(folder: str) -> None:
    files = (ROOT / folder).glob("*.md" if folder == "." else "**/*.*")
    texts = {path: path.read_text() for path in files if path.suffix in {".py", ".yaml", ".md", ".ipynb"}}
    texts.pop(Path(__file__), None)
    found = {
        path.name: words
        for path, text in texts.items()
        if (words := re.findall(rf"(?i)(?<![a-z])({WORDS})(?![a-z])", text))
    }
    assert found == {}


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS["README.md"].splitlines()) < 100
