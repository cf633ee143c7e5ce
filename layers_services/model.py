"""`layers_services.yaml` and `workflow.yaml`, with E2Clab's meaning and without what its schemas
let slip.

E2Clab 3.7's schemas (`e2clab/schemas/*_schema.py`) accept unknown keys almost everywhere; here they
are refused, except a service's metadata, where E2Clab allows any key and only look-alikes of a
known one are refused.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from laggard.core.yaml_source import ERROR_SUBKEY

MAX_HOSTS = 10_000
_RESERVED = {"all", "ungrouped"}


def _not_reserved(name: str) -> str:
    if name.lower() in _RESERVED:
        raise ValueError(f"`{name}` names every host in a pattern — choose another name")
    return name


def _plain_name(value: object) -> object:
    rule = (
        "a name is letters, digits, _ and -, at most 63, and begins with a letter or digit —"
        " rename it"
    )
    if not isinstance(value, str) or not value.isascii() or not 0 < len(value) <= 63:
        raise ValueError(rule)
    if not value[0].isalnum() or not all(letter.isalnum() or letter in "_-" for letter in value):
        raise ValueError(rule)
    return value


Name = Annotated[
    StrictStr,
    BeforeValidator(_plain_name),
    AfterValidator(_not_reserved),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$", "maxLength": 63}),
]
Walltime = Annotated[StrictStr, StringConstraints(pattern=r"^([01]\d|2[0-3]):([0-5]\d):([0-5]\d)$")]
Metadata = dict[StrictStr, JsonValue]
ProviderName = Literal["g5k", "iotlab", "chameleoncloud", "chameleonedge", "scalewayinstances"]


class _LayersSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FirewallRule(_LayersSection):
    """Ports that Grid'5000 opens to the outside for some services."""

    services: tuple[StrictStr, ...]
    ports: tuple[JsonValue, ...] = ()
    proto: Literal["tcp+udp", "all"] = "tcp+udp"


class _Provider(_LayersSection):
    job_name: StrictStr | None = None
    walltime: Walltime | None = None
    cluster: StrictStr | None = None


class G5k(_Provider):
    """How E2Clab reserves on Grid'5000."""

    queue: Literal["default", "production", "besteffort", "testing"] | None = None
    reservation: (
        Annotated[StrictStr, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$")]
        | None
    ) = None
    job_type: tuple[StrictStr, ...] | None = None
    env_name: StrictStr | None = None
    key_name: StrictStr | None = None
    firewall_rules: tuple[FirewallRule, ...] | None = None
    monitor: StrictStr | None = None
    ipv6: StrictBool | None = None

    @model_validator(mode="after")
    def _environments_are_deployed(self) -> Self:
        if self.env_name is not None and "deploy" not in (self.job_type or ()):
            raise ValueError(
                "`env_name` needs `deploy` among `job_type` — add `job_type: [deploy]`"
            )
        return self


class Iotlab(_Provider):
    """How E2Clab reserves on FIT IoT-LAB."""


class ChameleonCloud(_Provider):
    """How E2Clab reserves on Chameleon Cloud."""

    rc_file: StrictStr | None = None
    key_name: StrictStr | None = None
    image: StrictStr | None = None


class ChameleonEdge(_Provider):
    """How E2Clab reserves on Chameleon Edge."""

    rc_file: StrictStr | None = None
    image: StrictStr | None = None


class Scaleway(_Provider):
    """How E2Clab reserves Scaleway instances."""

    profile: StrictStr | None = None
    config_file: StrictStr | None = None
    region: StrictStr | None = None
    ipv6: StrictBool | None = None
    architecture: Literal["standalone", "private_network"] | None = None
    zone: StrictStr | None = None
    gateway_type: StrictStr | None = None
    image: StrictStr | None = None
    commercial_type: StrictStr | None = None
    ports_to_open: tuple[tuple[JsonValue, ...], ...] | None = None


class Environment(_LayersSection):
    """Where E2Clab would deploy, and what all of its providers share. The local testbed ignores
    it.
    """

    job_name: StrictStr | None = None
    walltime: Walltime | None = None
    cluster: StrictStr | None = None
    g5k: G5k | None = None
    iotlab: Iotlab | None = None
    chameleoncloud: ChameleonCloud | None = None
    chameleonedge: ChameleonEdge | None = None
    scalewayinstances: Scaleway | None = None

    @model_validator(mode="after")
    def _has_a_provider(self) -> Self:
        providers = (
            self.g5k,
            self.iotlab,
            self.chameleoncloud,
            self.chameleonedge,
            self.scalewayinstances,
        )
        if all(provider is None for provider in providers):
            raise ValueError(
                "E2Clab needs a provider here — add `g5k: {}`; the local testbed does not use it"
            )
        return self


class Service(BaseModel):
    """A service of a layer; keys that E2Clab does not know are metadata, handed on to the service
    as they are.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: Metadata

    name: Annotated[Name, Field(description="name of the service", examples=["trainer"])]
    quantity: Annotated[StrictInt, Field(ge=1, description="number of machines")] = 1
    roles: Annotated[tuple[Name, ...], Field(description="extra roles of its machines")] = ()
    repeat: Annotated[
        StrictInt, Field(ge=0, description="how many more such services the layer ends with")
    ] = 0
    env: Annotated[Metadata, Field(description="what the service's own code reads")] = {}
    environment: Annotated[
        ProviderName | None, Field(description="provider, unless the first one")
    ] = None
    cluster: StrictStr | None = None
    servers: tuple[StrictStr, ...] | StrictStr | None = None
    archi: StrictStr | None = None

    _metadata_of_e2clab: ClassVar[frozenset[str]] = frozenset(
        {"image", "profile", "ports", "containers"}
    )

    @property
    def metadata(self) -> Metadata:
        """The keys that E2Clab hands to the service unread."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def machines(self) -> int:
        """Machines of one such service: as many as servers are listed (unless a cluster is), else
        `quantity`.
        """
        if self.servers is None or self.cluster is not None:
            return self.quantity
        return 1 if isinstance(self.servers, str) else len(self.servers)

    @model_validator(mode="after")
    def _metadata_is_not_misspelt(self) -> Self:
        known = list(type(self).model_fields)
        for key in set(self.metadata) - self._metadata_of_e2clab:
            near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
            if near:
                raise ValueError(
                    f"`{key}` looks like a misspelling — write `{near[0]}`, or rename this metadata"
                )
        return self


class Layer(_LayersSection):
    """A tier of the continuum, such as edge, fog or cloud."""

    name: Annotated[Name, Field(description="name of the layer", examples=["cloud", "fog", "edge"])]
    services: Annotated[tuple[Service, ...], Field(description="its services, in order")]

    @property
    def machines(self) -> int:
        """Machines of the whole layer."""
        return sum(service.machines * (service.repeat + 1) for service in self.services)


class LayersServices(_LayersSection):
    """`layers_services.yaml`: the layers of the continuum and the services on them."""

    environment: Environment
    layers: tuple[Layer, ...]
    provenance: Metadata | None = None
    monitoring: Metadata | None = None
    monitoring_iotlab: Metadata | None = None
    kwollect: Metadata | None = None

    @model_validator(mode="after")
    def _names_hosts(self) -> Self:
        counts = Counter(layer.name.lower() for layer in self.layers)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            second = [i for i, layer in enumerate(self.layers) if layer.name.lower() == twice[0]][1]
            rule = "this layer is there twice (case does not matter) — put its services together"
            raise PydanticCustomError(
                "duplicate_name", rule, {ERROR_SUBKEY: ("layers", second, "name")}
            )
        machines = sum(layer.machines for layer in self.layers)
        if machines > MAX_HOSTS:
            raise ValueError(
                f"{machines} hosts are asked for, and a continuum has at most {MAX_HOSTS} — lower"
                " quantities"
            )
        if machines == 0:
            raise ValueError(
                "no layer has a service, so there is no host — add a layer with a service"
            )
        return self


class DependsOn(_LayersSection):
    """Hosts whose information a play's hosts are given."""

    service_selector: StrictStr
    prefix: StrictStr
    grouping: Literal["round_robin", "asarray", "aggregate", "address_match"]
    array_info: Literal["id", "hostname", "g5k_ipv6_hostname"] = "id"


AnsibleTasks = tuple[dict[StrictStr, JsonValue], ...]
PLAY_KEYWORDS = frozenset(
    {
        "any_errors_fatal",
        "become",
        "become_exe",
        "become_flags",
        "become_method",
        "become_user",
        "check_mode",
        "collections",
        "connection",
        "debugger",
        "diff",
        "environment",
        "fact_path",
        "force_handlers",
        "gather_facts",
        "gather_subset",
        "gather_timeout",
        "handlers",
        "ignore_errors",
        "ignore_unreachable",
        "max_fail_percentage",
        "module_defaults",
        "name",
        "no_log",
        "order",
        "port",
        "post_tasks",
        "pre_tasks",
        "remote_user",
        "roles",
        "run_once",
        "serial",
        "strategy",
        "tags",
        "throttle",
        "timeout",
        "vars",
        "vars_files",
        "vars_prompt",
    }
)


class Play(BaseModel):
    """Ansible tasks on some hosts, in E2Clab's three stages; other keys are keywords of an Ansible
    play.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: Metadata

    hosts: Annotated[
        StrictStr,
        StringConstraints(min_length=1),
        Field(description="host pattern", examples=["edge.*"]),
    ]
    depends_on: tuple[DependsOn, ...] = ()
    prepare: AnsibleTasks = ()
    launch: AnsibleTasks = ()
    finalize: AnsibleTasks = ()

    @model_validator(mode="after")
    def _other_keys_are_ansibles(self) -> Self:
        for key in self.__pydantic_extra__ or {}:
            if key not in PLAY_KEYWORDS:
                known = sorted(PLAY_KEYWORDS | set(type(self).model_fields))
                near = difflib.get_close_matches(key, known, n=1)
                raise ValueError(
                    f"`{key}` is no key of a play — "
                    + (f"did you mean `{near[0]}`?" if near else "remove it")
                )
        return self


class Workflow(RootModel[tuple[Play, ...]]):
    """`workflow.yaml`: a list of plays; `[]` where there is nothing to do."""

    model_config = ConfigDict(frozen=True)

    @property
    def plays(self) -> tuple[Play, ...]:
        """The plays, in order."""
        return self.root
