"""The modelled network: its tiers from the inside out, as files and as presets.

A `Network` says how fast each tier is, how many ranks it joins and in what form, and which
algorithms its collectives may use. Presets are YAML files in ``configs/network``, with a source
for every number; a user's own file has the same form. Which rank sits where is in `placement`,
what a collective costs in `algorithms`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml

from ..base.documents import DocumentError, read_yaml
from ..base.errors import NetworkError
from ..graph.columns import MOST_RANKS, Collective
from .algorithms.layout import MAX_TIERS, fabrics, port_tier, shape_of
from .algorithms.names import ALGORITHMS, AUTO, BY_LABEL, OF_COLLECTIVE
from .algorithms.plans import possible_somewhere
from .torus import Slices, described, parse_shape, reshaped, sized_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

    from .algorithms.names import Algorithm

Topology = Literal["switch", "ring", "fully_connected"]

#: What the tiers inside and outside a scale-up domain are called.
TIER_NAMES = ("scaleup", "scaleout")


#: No slowdown or exponent is larger: beyond lie only slips of the pen.
MOST_SLOWED = 1000.0


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to move bytes that trades bandwidth for latency, such as LL of NCCL.

    Attributes
    ----------
    name : str
        An operation uses protocols of one name in all tiers that have it.
    latency : float
        What the latency of the tier is multiplied by.
    efficiency : float
        What the efficiency of the tier is multiplied by, in (0, 1].
    base_ns : float
        What is added to the base of the tier.
    endpoint_ns_per_byte : float
        What is added to the endpoint cost of the tier.
    collectives : list of str
        Labels of the collectives that it is for. Those that no protocol is for use the protocols
        that are for none.
    """

    name: str
    latency: float = 1.0
    efficiency: float = 1.0
    base_ns: float = 0.0
    endpoint_ns_per_byte: float = 0.0
    collectives: list[str] = []

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise NetworkError(
                f"must be finite and not negative, is {self.latency}", place="protocols.latency"
            )
        _check_share(self.efficiency, "protocols.efficiency")
        if not math.isfinite(self.base_ns):
            raise NetworkError(f"must be finite, is {self.base_ns}", place="protocols.base_ns")
        _check_amount(self.endpoint_ns_per_byte, "protocols.endpoint_ns_per_byte")
        for label in self.collectives:
            if label not in BY_LABEL:
                raise NetworkError(
                    f"there is no collective {label!r}; there are {', '.join(BY_LABEL)}",
                    place="protocols.collectives",
                )


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dimension of the network.

    Attributes
    ----------
    topology : str
        ``switch``, ``ring`` or ``fully_connected``. Tiers of rings that follow each other are
        the dimensions of a torus.
    size : int
        How many ranks (innermost tier) or units of the tier below one unit of this tier can
        hold. The number of ranks need not be a multiple: a unit may be partly filled.
    bandwidth_gb_s : float
        Nominal, per direction (1 GB/s = 1 byte/ns). On a switch of one rank's port, all its NICs
        together, or of the NIC that `ranks_per_nic` share. On a full mesh of one rank, all its
        links together: a pair has 1/(size - 1) of it. On a ring of one link; a rank has two.
    latency_ns : float
        Per message; on a ring per hop.
    efficiency : float
        Fraction of nominal that large messages reach on the wire, in (0, 1].
    endpoint_ns_per_byte : float
        Cost per byte that does not scale with the link.
    base_ns : float
        Once per collective, of the outermost tier it uses. May be negative: a fit finds that
        where a link has a burst allowance.
    wrap : bool
        Whether a ring is closed. Without it the ring is a line, and a torus a mesh.
    ranks_per_nic : int
        Ranks of a unit of the tier below that share one port into this switch: 2 where a node
        has a NIC for every two devices.
    oversubscription : float
        At this switch a unit of the tier below has an uplink as wide as the ports of all ranks
        that it can hold, divided by this factor.
    shared_ports : bool
        Ranks reach this switch through their ports of the tier below, as between the pods of a
        fabric whose leaf switches are that tier.
    in_network_reduction : bool
        Whether the switch adds up and copies (NVLink SHARP, InfiniBand SHARP), which makes the
        algorithm ``in-switch`` possible.
    in_network_efficiency, in_network_latency_ns : float, optional
        Efficiency and latency per message when it does; by default as otherwise.
    protocols : list of Protocol
        Every operation uses the cheapest.
    source : str
        Where the numbers come from.

    Raises
    ------
    NetworkError
        If a number is not finite or outside its range, or a field does not go with the topology;
        `place` names the field.
    """

    topology: Topology = "switch"
    size: int
    bandwidth_gb_s: float
    latency_ns: float = 0.0
    efficiency: float = 1.0
    endpoint_ns_per_byte: float = 0.0
    base_ns: float = 0.0
    wrap: bool = True
    ranks_per_nic: int = 1
    oversubscription: float = 1.0
    shared_ports: bool = False
    in_network_reduction: bool = False
    in_network_efficiency: float | None = None
    in_network_latency_ns: float | None = None
    protocols: list[Protocol] = []
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("size", "ranks_per_nic"):
            value = getattr(self, field)
            if value < 1:
                raise NetworkError(f"must be at least 1, is {value}", place=field)
            if value > MOST_RANKS:
                raise NetworkError(f"must be at most {MOST_RANKS:,}", place=field)
        for field in ("bandwidth_gb_s", "latency_ns", "endpoint_ns_per_byte"):
            _check_amount(getattr(self, field), field)
        if self.bandwidth_gb_s == 0:
            raise NetworkError("must be above 0", place="bandwidth_gb_s")
        _check_share(self.efficiency, "efficiency")
        if not math.isfinite(self.base_ns):
            raise NetworkError(f"must be finite, is {self.base_ns}", place="base_ns")
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise NetworkError(
                f"must be at least 1, is {self.oversubscription}", place="oversubscription"
            )
        if self.in_network_efficiency is not None:
            _check_share(self.in_network_efficiency, "in_network_efficiency")
        if self.in_network_latency_ns is not None:
            _check_amount(self.in_network_latency_ns, "in_network_latency_ns")
        self._check_form()

    def _check_form(self) -> None:
        if not self.wrap and self.topology != "ring":
            raise NetworkError("only a ring can be without wrap-around", place="wrap")
        plain = {
            "ranks_per_nic": 1,
            "oversubscription": 1,
            "shared_ports": False,
            "in_network_reduction": False,
        }
        for field, value in plain.items():
            if self.topology != "switch" and getattr(self, field) != value:
                raise NetworkError(f"goes with a switch only, not {self.topology}", place=field)
        if self.shared_ports and (self.in_network_reduction or self.ranks_per_nic > 1):
            raise NetworkError(
                "a tier reached through the ports of the tier below has none of its own to share "
                "(ranks_per_nic) or to reduce through (in_network_reduction)",
                place="shared_ports",
            )
        names = [protocol.name for protocol in self.protocols]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise NetworkError(f"{twice!r} is there twice", place="protocols")
        if names and all(protocol.collectives for protocol in self.protocols):
            raise NetworkError("none is for the other collectives", place="protocols")

    @property
    def effective_gb_s(self) -> float:
        """Bandwidth that large messages reach, per direction."""
        return self.bandwidth_gb_s * self.efficiency


class Overlap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What compute suffers from transfers beside it (see `interference`).

    Attributes
    ----------
    slowdown : float
        How much longer compute takes while a transfer of its rank is in flight, as a fraction,
        where transfers take as long as those measured.
    exponent : float
        Where transfers take r times as long, compute loses ``r ** exponent`` times the share of
        that time: with 0 the same share whatever the network.

    Raises
    ------
    NetworkError
        If one is negative or larger than `MOST_SLOWED`.
    """

    slowdown: float
    exponent: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= MOST_SLOWED):
                raise NetworkError(
                    f"must be from 0 to {MOST_SLOWED:g}, is {value}", place=f"overlap.{name}"
                )


class Alternative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other numbers for a network that the measurements it rests on allow about as well.

    Attributes
    ----------
    tiers : list of Tier
        With the topologies and sizes of the network's own.
    overlap : Overlap or None
        As for the network.
    """

    tiers: list[Tier]
    overlap: Overlap | None = None


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network, and the algorithms that its collectives use.

    Attributes
    ----------
    name : str
        Name of the preset, or what the network was estimated from.
    tiers : list of Tier
        From the inside out; one to five.
    algorithm : str or list of str, optional
        What collectives use: the name of an algorithm (see `algorithms`), ``auto`` for whatever
        is cheapest for an operation, or a list of names of which the cheapest is taken. It counts
        for the collectives that have these algorithms; by default, and for the others, the
        default of the collective does.
    algorithms : dict of str to (str or list of str)
        The same for single collectives, by label: ``{all-reduce: [ring, tree]}``.
    pipeline_chunks : int
        Chunks of the algorithms that pipeline tiers.
    own_share : float
        What a rank needs for the part of the data that it keeps, as a share of the time to send
        it, in rings of equal parts and direct all-to-alls: an all-gather of parts of S bytes
        takes (n - 1 + own_share) S/B. From 0 to 1.
    overlap : Overlap or None
        How compute slows down beside transfers; with None its durations stay as measured.
    alternatives : list of Alternative
        What a result is on them says how sure it is.
    slices : Slices, optional
        How jobs get parts of the torus that its neighbouring rings are (see `torus`).
    assumptions : list of str
        What was assumed rather than given or measured; printed with every result.

    Raises
    ------
    NetworkError
        If there are no tiers, or too many, if they do not fit together, or if an algorithm does
        not exist.
    """

    name: str
    tiers: list[Tier]
    algorithm: str | list[str] | None = None
    algorithms: dict[str, str | list[str]] = {}
    pipeline_chunks: int = 8
    own_share: float = 0.0
    overlap: Overlap | None = None
    alternatives: list[Alternative] = []
    slices: Slices | None = None
    assumptions: list[str] = []

    def __post_init__(self) -> None:
        if not 1 <= len(self.tiers) <= MAX_TIERS:
            raise NetworkError(
                f"a network has one to {MAX_TIERS} tiers, this one has {len(self.tiers)}",
                place="tiers",
            )
        if self.tiers[0].shared_ports or self.tiers[0].ranks_per_nic > 1:
            raise NetworkError(
                "there is no tier below whose ranks could share ports", place="tiers[0]"
            )
        for index, tier in enumerate(self.tiers):
            if tier.shared_ports and self.tiers[index - 1].topology != "switch":
                raise NetworkError(
                    "only the ports into a switch can be shared",
                    place=f"tiers[{index}].shared_ports",
                )
        if self.pipeline_chunks < 1:
            raise NetworkError(
                f"must be at least 1, is {self.pipeline_chunks}", place="pipeline_chunks"
            )
        if not 0 <= self.own_share <= 1:
            raise NetworkError(f"must be from 0 to 1, is {self.own_share}", place="own_share")
        for name in _listed(self.algorithm):
            if name not in (AUTO, *ALGORITHMS):
                raise NetworkError(
                    f"there is no algorithm {name!r}; there are {AUTO}, {', '.join(ALGORITHMS)}",
                    place="algorithm",
                )
        for label, names in self.algorithms.items():
            if label not in BY_LABEL:
                raise NetworkError(
                    f"there is no collective {label!r}; there are {', '.join(BY_LABEL)}",
                    place="algorithms",
                )
            known = OF_COLLECTIVE[BY_LABEL[label]]
            for name in _listed(names):
                if name not in (AUTO, *known):
                    raise NetworkError(
                        f"there is no algorithm {name!r} for {label}; there are "
                        f"{', '.join((AUTO, *known))}",
                        place=f"algorithms.{label}",
                    )

    @property
    def capacity(self) -> int:
        """How many ranks the network can join."""
        return math.prod(tier.size for tier in self.tiers)

    @property
    def tier_names(self) -> tuple[str, ...]:
        """``scaleup`` or ``scaleout`` for each tier.

        Scale-out is the outermost fabric where there is more than one. A torus is one fabric,
        and so are a tier and those that share its ports.
        """
        shape = shape_of(self.tiers)
        runs = fabrics(shape)
        first = runs[-1][0] if len(runs) > 1 else len(shape)
        if first < len(shape):
            first = port_tier(shape, first)
        return tuple(TIER_NAMES[index >= max(first, 1)] for index in range(len(shape)))

    @property
    def scopes(self) -> tuple[str, ...]:
        """The names of `tier_names`, each once: by these prices and resources go."""
        return tuple(dict.fromkeys(self.tier_names))

    @property
    def domain_size(self) -> int:
        """How many ranks a scale-up domain can hold."""
        scaleup = [tier.size for tier, name in self._named() if name == TIER_NAMES[0]]
        return math.prod(scaleup)

    @property
    def num_domains(self) -> int:
        """How many scale-up domains the network can join."""
        return math.prod(tier.size for tier, name in self._named() if name == TIER_NAMES[1])

    def alternative(self, other: Alternative) -> Network:
        """Give the network that has the numbers of one of its alternatives, and none itself."""
        return msgspec.structs.replace(
            self, tiers=other.tiers, overlap=other.overlap, alternatives=[]
        )

    def _named(self) -> list[tuple[Tier, str]]:
        return list(zip(self.tiers, self.tier_names, strict=True))

    def choices(self, coll: Collective) -> tuple[Algorithm, ...]:
        """Algorithms that a collective may use; none where the default counts."""
        known = OF_COLLECTIVE[coll]
        label = coll.label
        if label not in self.algorithms and coll == Collective.REDUCE_SCATTER_BLOCK:
            label = Collective.REDUCE_SCATTER.label
        names = _listed(self.algorithms.get(label, self.algorithm))
        return known if AUTO in names else tuple(name for name in known if name in names)


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []


def _check_amount(value: float, field: str) -> None:
    if not math.isfinite(value) or value < 0:
        raise NetworkError(f"must be finite and not negative, is {value}", place=field)


def _check_share(value: float, field: str) -> None:
    if not 0 < value <= 1:
        raise NetworkError(f"must be above 0 and at most 1, is {value}", place=field)


def check_priced(network: Network) -> None:
    """Refuse a network that names an algorithm for a collective which no group could use on it.

    Raises
    ------
    NetworkError
        Naming network, collective and the algorithms that are possible.
    """
    for label in network.algorithms:
        coll = BY_LABEL[label]
        wanted = network.choices(coll)
        found = possible_somewhere(shape_of(network.tiers), coll)
        if not set(wanted) & set(found):
            raise NetworkError(
                f"{label} cannot use {', '.join(wanted)} on network {network.name!r}; possible: "
                f"{', '.join(found)}",
                place=f"algorithms.{label}",
            )


def preset_names() -> list[str]:
    """Names of the presets that ship with the package, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in _presets().iterdir()
        if entry.name.endswith(".yaml")
    )


def load_network(name_or_path: str | Path) -> Network:
    """Load a preset by its name, or a network from a YAML file.

    Parameters
    ----------
    name_or_path : str or Path
        One of `preset_names`, if it is a torus also with the shape of a slice (``tpu_v5e:2x4``),
        or the path of a file in the form of the presets.

    Returns
    -------
    Network

    Raises
    ------
    NetworkError
        If there is no such preset or file, or if the file is malformed: unknown, missing or
        mistyped fields, or numbers out of range. The error names the file and the field.
    """
    preset, colon, shape = str(name_or_path).partition(":")
    if preset in preset_names():
        name = f"{preset}.yaml"
        network = _parse(_presets().joinpath(name).read_bytes(), name)
        return _cut(network, shape) if colon else network
    path = Path(name_or_path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NetworkError(
            f"no such file, and no preset of that name; presets: {', '.join(preset_names())}",
            file=path,
        ) from None
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", file=path) from error
    return _parse(content, str(path))


def _cut(network: Network, shape: str) -> Network:
    cut = reshaped(network, parse_shape(shape))
    note = f"slices of {described(cut)} chips, as named; ranks take their places in their order"
    return msgspec.structs.replace(cut, assumptions=[*cut.assumptions, note])


def save_network(network: Network, path: str | Path) -> None:
    """Write a network as YAML that `load_network` reads back unchanged.

    Raises
    ------
    NetworkError
        If the file cannot be written.
    """
    text = yaml.safe_dump(msgspec.to_builtins(network), sort_keys=False, allow_unicode=True)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NetworkError(f"cannot be written: {error.strerror}", file=path) from error


def match_preset(device_name: str, num_ranks: int, hosts: Sequence[str]) -> Network | None:
    """Find the preset of the machine that a trace comes from.

    Parameters
    ----------
    device_name : str
        Name of the device in the trace, for example ``NVIDIA A100-SXM4-80GB``; empty for a job
        without a device, which gets ``loopback``.
    num_ranks : int
        Ranks of the job, traced or not.
    hosts : sequence of str
        Host name of each traced rank; empty strings where the trace does not say.

    Returns
    -------
    Network or None
        The preset, with the choice added to its assumptions; None where no preset is of that
        device or none joins so many ranks.
    """
    per_host = Counter(host for host in hosts if host)
    if not device_name:
        name, chosen = "loopback", "the trace names no device: a CPU job"
        if len(per_host) > 1:
            chosen += f"; its {len(per_host)} hosts are taken for one switch"
    else:
        name = next((preset for pattern, preset in _DEVICES if pattern.search(device_name)), "")
        chosen = f"the trace names the device {device_name!r}"
        # Boards of four A100 without a switch are told from those of eight by the ranks per host.
        if name == "dgx_a100" and len(per_host) > 1 and max(per_host.values()) <= _MESH_A100_RANKS:
            name = "perlmutter_a100"
            chosen += f" and at most {_MESH_A100_RANKS} ranks on each of {len(per_host)} hosts"
    if not name:
        return None
    network = sized_for(load_network(name), num_ranks)
    if num_ranks > network.capacity or (
        len(network.tiers) == 1 and device_name and len(per_host) > 1
    ):
        return None
    note = f"preset {name} chosen because {chosen}"
    return msgspec.structs.replace(network, assumptions=[note, *network.assumptions])


_MESH_A100_RANKS = 4

# PCIe boards, export models (A800, H800, H20, MI308X) and other Grace modules (GH200) have other
# links than the machines of the presets, so a name must match the module exactly.
_DEVICES = (
    (re.compile(r"\bA100-(SXM|PG50)"), "dgx_a100"),
    (re.compile(r"\bV100-SXM2\b"), "v100x8"),
    (re.compile(r"\bH100( \w+)? HBM3\b|\bH100-SXM|\bH200$|\bH200[- ]SXM"), "dgx_h100"),
    (re.compile(r"\bB200\b"), "dgx_b200"),
    (re.compile(r"\bGB200\b"), "gb200_nvl72"),
    (re.compile(r"\bMI3(00|25)X\b"), "mi300x"),
    # XLA's own names ("TPU v6 Lite"), JAX's (device_kind, "TPU v5 lite", "TPU v5") and Google's.
    (re.compile(r"^TPU ?v4$", re.IGNORECASE), "tpu_v4"),
    (re.compile(r"^TPU ?v5( ?lite|e)$", re.IGNORECASE), "tpu_v5e"),
    (re.compile(r"^TPU ?v5p?$", re.IGNORECASE), "tpu_v5p"),
    (re.compile(r"^TPU ?v6( ?lite|e)$", re.IGNORECASE), "tpu_v6e"),
    (re.compile(r"^TPU ?v?7x?$", re.IGNORECASE), "tpu_v7x"),
    # Traces as JSON do not name the generation.
    (re.compile(r"^TPU$"), "tpu"),
)


def _presets() -> Traversable:
    package = __package__.rpartition(".")[0]
    return resources.files(f"{package}.configs").joinpath("network")


def _parse(content: bytes, file: str) -> Network:
    try:
        raw = read_yaml(content)
    except DocumentError as error:
        raise NetworkError(
            f"not a network: {error.problem}", file=file, place=error.place
        ) from error
    if not isinstance(raw, dict):
        raise NetworkError(
            "not a network: expected a mapping with the fields name and tiers", file=file
        )
    tiers = raw.get("tiers")
    if isinstance(tiers, list):
        raw = {
            **raw,
            "tiers": [_convert(t, Tier, file, f"tiers[{i}]") for i, t in enumerate(tiers)],
        }
    network: Network = _convert(raw, Network, file, "")
    form = [(tier.topology, tier.size) for tier in network.tiers]
    for index, other in enumerate(network.alternatives):
        if [(tier.topology, tier.size) for tier in other.tiers] != form:
            raise NetworkError(
                "must have the topologies and sizes of the tiers",
                file=file,
                place=f"alternatives[{index}].tiers",
            )
    return network


def _convert(raw: Any, kind: type[Any], file: str, where: str) -> Any:  # noqa: ANN401
    """Decode one level, so that an error can name the tier as well as the field."""
    try:
        # Not strict, because YAML 1.1 takes a number such as 1e3 for text.
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        place = (where + path.rstrip("`")).lstrip(".")
        raise NetworkError(problem, file=file, place=place or None) from error
    except NetworkError as error:
        place = f"{where}.{error.place}".lstrip(".")
        raise NetworkError(error.message, file=file, place=place) from error
