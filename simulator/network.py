"""The modelled network: its tiers from the inside out, as files and as presets.

A `Network` says how fast each tier is and how many ranks it joins. Presets are YAML files in
``configs/network``, with a source for every number; a user's own file has the same form. Which
rank sits where is in `placement`, what a collective costs in `collectives`.
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

from ..base.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

Topology = Literal["switch", "ring", "fully_connected"]

#: What the tiers are called, from the inside out.
TIER_NAMES = ("scaleup", "scaleout")

#: Topologies whose collectives have a price.
PRICED_TOPOLOGIES = ("switch",)


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dimension of the network.

    Attributes
    ----------
    topology : str
        ``switch``, ``ring`` or ``fully_connected``.
    size : int
        How many ranks (innermost tier) or units of the tier below one unit of this tier can
        hold. The number of ranks need not be a multiple: a unit may be partly filled.
    bandwidth_gb_s : float
        Nominal, per rank and direction (1 GB/s = 1 byte/ns).
    latency_ns : float
        Per message.
    efficiency : float
        Fraction of nominal that large messages reach on the wire, in (0, 1].
    endpoint_ns_per_byte : float
        Cost per byte that does not scale with the link.
    base_ns : float
        Once per collective, of the outermost tier it uses. May be negative: a fit finds that
        where a link has a burst allowance.
    source : str
        Where the numbers come from.

    Raises
    ------
    NetworkError
        If a number is not finite or outside its range; `place` names the field.
    """

    topology: Topology = "switch"
    size: int
    bandwidth_gb_s: float
    latency_ns: float = 0.0
    efficiency: float = 1.0
    endpoint_ns_per_byte: float = 0.0
    base_ns: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise NetworkError(f"must be at least 1, is {self.size}", place="size")
        for field in ("bandwidth_gb_s", "latency_ns", "efficiency", "endpoint_ns_per_byte"):
            value = getattr(self, field)
            if not math.isfinite(value) or value < 0:
                raise NetworkError(f"must be finite and not negative, is {value}", place=field)
        if self.bandwidth_gb_s == 0:
            raise NetworkError("must be above 0", place="bandwidth_gb_s")
        if not 0 < self.efficiency <= 1:
            raise NetworkError(
                f"must be above 0 and at most 1, is {self.efficiency}", place="efficiency"
            )
        if not math.isfinite(self.base_ns):
            raise NetworkError(f"must be finite, is {self.base_ns}", place="base_ns")

    @property
    def effective_gb_s(self) -> float:
        """Bandwidth that large messages reach, per rank and direction."""
        return self.bandwidth_gb_s * self.efficiency


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network: tier 0 is scale-up, tier 1 (if any) scale-out.

    Attributes
    ----------
    name : str
        Name of the preset, or what the network was estimated from.
    tiers : list of Tier
        From the inside out; one or two.
    assumptions : list of str
        What was assumed rather than given or measured; printed with every result.

    Raises
    ------
    NetworkError
        If there are no tiers, or more than two.
    """

    name: str
    tiers: list[Tier]
    assumptions: list[str] = []

    def __post_init__(self) -> None:
        if not 1 <= len(self.tiers) <= len(TIER_NAMES):
            raise NetworkError(
                f"a network has one or two tiers, this one has {len(self.tiers)}", place="tiers"
            )

    @property
    def capacity(self) -> int:
        """How many ranks the network can join."""
        return math.prod(tier.size for tier in self.tiers)


def check_priced(network: Network) -> None:
    """Refuse a network whose topologies have no price.

    Raises
    ------
    NetworkError
        Naming the network, the tier and the topologies that are supported.
    """
    for name, tier in zip(TIER_NAMES, network.tiers, strict=False):
        if tier.topology not in PRICED_TOPOLOGIES:
            raise NetworkError(
                f"topology {tier.topology!r} of network {network.name!r} cannot be simulated; "
                f"supported: {', '.join(PRICED_TOPOLOGIES)}",
                place=f"tier {name}",
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
        One of `preset_names`, or the path of a file in the form of the presets.

    Returns
    -------
    Network

    Raises
    ------
    NetworkError
        If there is no such preset or file, or if the file is malformed: unknown, missing or
        mistyped fields, or numbers out of range. The error names the file and the field.
    """
    if str(name_or_path) in preset_names():
        name = f"{name_or_path}.yaml"
        return _parse(_presets().joinpath(name).read_bytes(), name)
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
    network = load_network(name)
    if num_ranks > network.capacity or (
        len(network.tiers) == 1 and device_name and len(per_host) > 1
    ):
        return None
    note = f"preset {name} chosen because {chosen}"
    return msgspec.structs.replace(network, assumptions=[note, *network.assumptions])


_MESH_A100_RANKS = 4

# PCIe boards, export models (A800, H800, H20, MI308X) and Grace modules (GH200, GB200) have other
# links than the machines of the presets, so a name must match the module exactly.
_DEVICES = (
    (re.compile(r"\bA100-(SXM|PG50)"), "dgx_a100"),
    (re.compile(r"\bV100-SXM2\b"), "v100x8"),
    (re.compile(r"\bH100( \w+)? HBM3\b|\bH100-SXM|\bH200$|\bH200[- ]SXM"), "dgx_h100"),
    (re.compile(r"\bB200\b"), "dgx_b200"),
    (re.compile(r"\bMI3(00|25)X\b"), "mi300x"),
)


def _presets() -> Traversable:
    package = __package__.rpartition(".")[0]
    return resources.files(f"{package}.configs").joinpath("network")


def _parse(content: bytes, file: str) -> Network:
    try:
        raw = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark else None
        problem = getattr(error, "problem", None) or "not text in UTF-8"
        raise NetworkError(f"not YAML: {problem}", file=file, place=place) from error
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
