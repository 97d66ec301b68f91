"""A sample of what benchmarks/fuzz_xla.py does by the thousand: damaged XLA profiles.

The files damaged here are the recorded JAX job and small profiles of the counterfactual oracle, of
both kinds; the benchmark damages larger real ones, too.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .oracle.executor import execute
from .oracle.xla_programs import random_xla_program
from .oracle.xla_writer import write_xla
from .test_counterfactual import networks_for

if TYPE_CHECKING:
    from .oracle.xla_writer import Form

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "jax_cpu_8devices" / "localhost.xplane.pb.gz"


def _load_script() -> Any:
    spec = importlib.util.spec_from_file_location("fuzz_xla", ROOT / "benchmarks" / "fuzz_xla.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fuzz = _load_script()


def keeps_its_promises(source: Path, seeds: range, folder: Path) -> None:
    """Damage a file with seeds; every outcome is a graph or an error with words."""
    content = source.read_bytes()
    whole = fuzz.outcome(source, None)
    assert whole.kind == "graph", whole.detail
    kinds = set()
    for seed in seeds:
        how, found = fuzz.check_file(source, content, seed, folder, whole.content)
        assert not found.broken, f"{source.name} seed {seed} ({how}): {found.kind}: {found.detail}"
        kinds.add(found.kind)
    assert kinds == {"graph", "refused"}


def test_a_damaged_recording_is_read_or_refused(tmp_path: Path) -> None:
    keeps_its_promises(EXAMPLE, range(8), tmp_path)


@pytest.mark.parametrize("form", ["xplane", "json"])
@pytest.mark.parametrize("profile", ["async", "permute"])
def test_damaged_profiles_of_the_oracle_are_read_or_refused(
    form: Form, profile: Any, tmp_path: Path
) -> None:
    job = random_xla_program(2, profile=profile)
    run = execute(job.program, networks_for(job.program)[0][0])
    write_xla(job, run, tmp_path / "whole", form=form)
    (source,) = (tmp_path / "whole").glob("**/host0.*")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    keeps_its_promises(source, range(25), damaged)


def test_the_same_seed_does_the_same_damage() -> None:
    content = EXAMPLE.read_bytes()
    first = [fuzz.damaged(EXAMPLE.name, content, seed) for seed in range(5)]
    again = [fuzz.damaged(EXAMPLE.name, content, seed) for seed in range(5)]
    assert first == again
    assert all(changed != content for _, changed in first)


def test_what_is_lost_in_silence_is_noticed() -> None:
    intact = fuzz.Content(ranks=2, steps=3, communicating=40, computing=9, said=("as always",))
    assert not fuzz.Content(2, 3, 40, 9, ("as always",)).lost(intact)
    assert not fuzz.Content(1, 3, 20, 4, ("as always", "a rank is missing")).lost(intact)
    lost = fuzz.Content(1, 3, 39, 9, ("as always",)).lost(intact)
    assert lost == "1 ranks, 1 communicating nodes"
