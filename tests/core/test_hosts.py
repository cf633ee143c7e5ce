"""Host patterns: a table, and E2Clab's own look-up as the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.hosts import Host, find_ambiguous_groups, find_pattern_error, select_hosts


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
        ("e" * 257, "at most"),
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


@pytest.fixture(scope="module")
def e2clab_names() -> object:
    """E2Clab's `get_hosts_from_pattern` on the roles that it would have made of our hosts."""
    en = pytest.importorskip("enoslib")
    from e2clab.utils import get_hosts_from_pattern

    roles = en.Roles()
    for host in HOSTS:
        for group in host.groups:
            roles.setdefault(group, [])
            roles[group] = [*roles[group], en.Host(host.address)]
    for host in HOSTS:
        roles[host.name] = [en.Host(host.address)]
    by_address = {host.address: host.name for host in HOSTS}
    return lambda pattern: {
        by_address[found.address] for found in get_hosts_from_pattern(roles, pattern)
    }


@pytest.mark.filterwarnings("default")
@given(pattern=_PATTERNS)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_e2clab_finds_the_same_hosts(e2clab_names, pattern: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    assert set(_names(pattern)) == e2clab_names(pattern)
