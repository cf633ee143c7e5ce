"""Host patterns: a table, and E2Clab's own look-up as the oracle."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laggard.core.hosts import Host, find_ambiguous_groups, find_pattern_error, select_hosts
from laggard.layers_services.compile import compile_hosts
from laggard.layers_services.model import LayersServices


def _host(
    layer: str,
    service: str,
    service_id: int,
    machine_id: int,
    layer_id: int,
    roles: tuple[str, ...] = (),
) -> Host:
    name = f"{layer}.{service}.{service_id}.{machine_id}"
    return Host(
        name,
        layer,
        service,
        service_id,
        machine_id,
        f"10.77.{layer_id}.{service_id * 16 + machine_id}",
        roles,
        layer_id,
    )


HOSTS = (
    _host("cloud", "trainer", 1, 1, 1),
    _host("cloud", "trainer", 1, 2, 1),
    _host("fog", "gateway", 1, 1, 2, ("relay",)),
    _host("fog", "trainer", 2, 1, 2),
    _host("edge", "trainer", 1, 1, 3),
    _host("edge", "trainer", 1, 2, 3),
    _host("edge", "sensor", 2, 1, 3, ("relay",)),
)
NAMES = tuple(host.name for host in HOSTS)


def _names(pattern: str) -> tuple[str, ...]:
    return tuple(host.name for host in select_hosts(pattern, HOSTS))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("edge.*", NAMES[4:]),
        ("EDGE.*", NAMES[4:]),
        ("edge", NAMES[4:5]),  # a role stands for its first host
        ("trainer", NAMES[:1]),
        ("relay", NAMES[2:3]),
        ("3_2", NAMES[6:]),
        ("all", NAMES),
        ("*", NAMES),
        ("cloud.*,fog.*", NAMES[:4]),
        ("cloud.*:fog.*", NAMES[:4]),
        ("edge.*:!edge.sensor.*", NAMES[4:6]),
        ("edge.*:!edge", NAMES[4:]),  # takes away the role, not the host's own key
        ("*.trainer.*:&edge.*", NAMES[4:6]),
        (
            "!edge.*",
            (*NAMES[:5], NAMES[6]),
        ),  # the roles `edge` and `3_2` are left, and with each its first host
        ("~edge\\.(trainer|sensor).*", NAMES[4:]),
        ("edge.trainer.1.[!2]", NAMES[4:5]),
        ("edge.trainer.1.[12]", ()),  # the thirteenth match, as in Ansible
        ("edge.*[0-1]", NAMES[4:6]),
        ("edge.*[0]", NAMES[4:5]),
        ("edge.*[-1]", NAMES[6:]),
        ("edge.*[0:1]", NAMES[4:6]),
        ("edge.*[1:]", NAMES[5:]),
        ("edge.*[9]", ()),
        ("nothing.*", ()),
        ("", ()),
        (",,", ()),
        ("~[", ()),
    ],
)
def test_patterns(pattern: str, expected: tuple[str, ...]) -> None:
    assert _names(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("", "at least one name or glob"),
        ("~[", "pairs"),
        ("edge.*[", "pairs"),
        ("~[,edge.*", "not a regular expression"),
        ("!", "at least one name or glob"),
        ("edge.*:~", "at least one name or glob"),
        ("~(a{99}){99}", "more than 256 states"),
        ("~" + "(" * 40 + "a" + ")" * 40, "groups inside each other"),
        ("~(?=edge)", "contains (?=, which cannot be matched in linear time"),
        ("~(a)\\1", "contains \\1, which"),
        ("~(?i)edge", "contains (?i, which"),
        ("~\\bedge", "contains \\be, which"),
        ("~a*+", "contains +, which"),
        ("e" * 2001, "at most"),
    ],
)
def test_what_is_no_pattern_selects_nothing_and_says_why(pattern: str, rule: str) -> None:
    fault = find_pattern_error(pattern)
    assert fault is not None
    assert rule in fault
    assert select_hosts(pattern, HOSTS) == ()


def test_bare_groups_of_several_hosts_are_told() -> None:
    assert find_ambiguous_groups("edge,cloud.*", HOSTS) == ("edge",)
    assert find_ambiguous_groups("edge.*:!relay", HOSTS) == ("relay",)
    assert find_ambiguous_groups("gateway", HOSTS) == ()


def test_order_is_that_of_the_hosts() -> None:
    assert _names("edge.*,cloud.*") == (*NAMES[:2], *NAMES[4:])


@given(st.text(alphabet="edgcloufrainst.*?[]!&~:,0123_-()|+\\ ", max_size=80))
@settings(max_examples=500)
def test_any_text_selects_hosts_or_nothing(pattern: str) -> None:
    chosen = select_hosts(pattern, HOSTS)
    assert set(chosen) <= set(HOSTS)
    assert list(chosen) == [host for host in HOSTS if host in chosen]
    if find_pattern_error(pattern) is not None:
        assert chosen == ()


@pytest.mark.timeout(60)
def test_a_thousand_hosts_and_hostile_globs_end() -> None:
    hosts = tuple(_host("edge", "a" * 60, 1, machine, 1) for machine in range(1, 1001))
    assert select_hosts("*a" * 100 + "b", hosts) == ()
    for hostile in ("(a|a)" * 45, "a?" * 60 + "a" * 60, "(a+)+", "(.*)*", ".*" * 60, "(a*a*)*"):
        assert find_pattern_error(f"~edge.{hostile}!") is None
        assert select_hosts(f"~edge.{hostile}!", hosts) == ()
    assert select_hosts("a?" * 100 + "b", hosts) == ()


_TERMS = st.sampled_from(
    ["edge.*", "fog.*", "cloud.*", "edge", "fog", "cloud", "trainer", "sensor", "relay", "*.trainer.*", "edge.trainer.1.1",
     "fog.?ateway.*", "*.1.2", "edge.trainer.1.[12]", "edge.trainer.1.[!1]", "all", "*", "none.*", "~edge.*", "~(fog|cloud)", "e*", "3_1", "2_2", "edge.*[0]", "edge.*[0:1]", "edge.*[1:]"]
)  # fmt: skip
_PATTERNS = st.lists(
    st.tuples(st.sampled_from(["", "", "!", "&"]), _TERMS).map("".join), min_size=1, max_size=4
).flatmap(lambda terms: st.sampled_from([",".join(terms), ":".join(terms)]))


def _e2clab_names(pattern: str, hosts: Sequence[Host]) -> set[str]:
    """Return what E2Clab's `get_hosts_from_pattern` finds on the roles that it makes of hosts."""
    en = pytest.importorskip("enoslib")
    from e2clab.utils import get_hosts_from_pattern

    roles = en.Roles()
    for host in hosts:
        for group in host.groups:
            # Only the first host: EnOSlib sorts the hosts of a role by address, as text.
            if group not in roles:
                roles[group] = [en.Host(host.address)]
    for host in hosts:
        roles[host.name] = [en.Host(host.address)]
    by_address = {host.address: host.name for host in hosts}
    return {by_address[found.address] for found in get_hosts_from_pattern(roles, pattern)}


@pytest.mark.filterwarnings("default")
@given(pattern=_PATTERNS)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_e2clab_finds_the_same_hosts(pattern: str) -> None:
    assert set(_names(pattern)) == _e2clab_names(pattern, HOSTS)


_NAMES = st.sampled_from(["edge", "fog", "edge2", "e", "a-b", "gpu", "x_1", "2x", "trainer"])


@st.composite
def _continua(draw: st.DrawFn) -> tuple[Host, ...]:
    layers = []
    for name in draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True)):
        services = [
            {"name": draw(_NAMES), "quantity": draw(st.integers(1, 3)),
             "repeat": draw(st.integers(0, 1)), "roles": draw(st.lists(_NAMES, max_size=2))}
            for _ in range(draw(st.integers(1, 2)))
        ]  # fmt: skip
        layers.append({"name": name, "services": services})
    document = {"environment": {"g5k": {}}, "layers": layers}
    return compile_hosts(LayersServices.model_validate(document))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[tuple[Host, ...], str]:
    """Draw hosts, and a pattern whose terms are made of their names."""
    hosts = draw(_continua())
    known = sorted({name for host in hosts for name in (host.name, *host.groups)})
    terms = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(known))
        at = draw(st.integers(0, len(name)))
        glob = draw(st.sampled_from([name, f"{name}.*", f"{name[:at]}*", f"*{name[at:]}"]))
        form = draw(st.sampled_from(["{}", "{}", "{}[0]", "{}[-1]", "{}[0:1]", "{}[1:]", "~{}"]))
        term = draw(st.sampled_from(["", "", "!", "&"])) + form.format(glob)
        terms.append(draw(st.sampled_from([term, term.upper(), f" {term}"])))
    return hosts, draw(st.sampled_from([",", ", ", ":"])).join(terms)


def _matches_a_number(pattern: str) -> bool:
    """Return whether a term matches digits: E2Clab numbers the roles in its inventory, so that such
    a term also selects the role with that number there."""
    terms = re.split(r"\s*[,:]\s*", re.sub(r"\[[-:\d]*\]", "", pattern.strip()))
    expressions = [
        term[1:] if term.startswith("~") else fnmatch.translate(term)
        for term in (term.lower().lstrip("!&") for term in terms)
    ]
    return any(re.match(each, str(number)) for each in expressions for number in range(100))


@pytest.mark.filterwarnings("default")
@given(case=_cases())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_e2clab_finds_the_same_hosts_of_any_continuum(case: tuple[tuple[Host, ...], str]) -> None:
    hosts, pattern = case
    assume(find_pattern_error(pattern) is None)
    assume(not _matches_a_number(pattern))
    chosen = {host.name for host in select_hosts(pattern, hosts)}
    assert chosen == _e2clab_names(pattern, hosts)
