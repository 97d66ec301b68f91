"""The file behind ``--rank-map``: which scale-up domain each rank sits in."""

from __future__ import annotations

from pathlib import Path

from .base.documents import DocumentError, read_yaml
from .base.errors import NetworkError

#: Domains are numbered from 0; no machine has more.
MOST_DOMAINS = 1 << 31


def read_rank_map(path: str | Path) -> dict[int, int]:
    """Read a rank map.

    Parameters
    ----------
    path : str or Path
        YAML or JSON: a list whose entry i is the domain of rank i, or a mapping from rank to
        domain. A domain is a number or a name, such as that of a host.

    Returns
    -------
    dict of int to int
        Domain of every rank; names are numbered in order of their first rank.

    Raises
    ------
    NetworkError
        If the file cannot be read or is neither; names the entry.
    """
    try:
        raw = read_yaml(Path(path).read_bytes())
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", file=path) from error
    except DocumentError as error:
        raise NetworkError(
            f"is not a rank map: {error.problem}", file=path, place=error.place
        ) from error
    if isinstance(raw, list):
        raw = dict(enumerate(raw))
    if not isinstance(raw, dict) or not raw:
        raise NetworkError(
            "is not a rank map: expected a list of domains, or a mapping from rank to domain",
            file=path,
        )
    domains: dict[int, int | str] = {}
    for key, domain in raw.items():
        # JSON has only text for keys.
        rank = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise NetworkError(f"{key!r} is no rank number", file=path)
        if rank in domains:
            raise NetworkError("is given twice", file=path, rank=rank)
        if not isinstance(domain, int | str) or isinstance(domain, bool):
            raise NetworkError(
                f"the domain {domain!r} is neither a number nor a name", file=path, rank=rank
            )
        if isinstance(domain, int) and not 0 <= domain < MOST_DOMAINS:
            raise NetworkError(f"{domain} is no number of a domain", file=path, rank=rank)
        domains[rank] = domain
    if all(isinstance(domain, int) for domain in domains.values()):
        return {rank: int(domain) for rank, domain in domains.items()}
    number: dict[int | str, int] = {}
    return {rank: number.setdefault(domains[rank], len(number)) for rank in sorted(domains)}
