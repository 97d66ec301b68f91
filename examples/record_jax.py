"""Record a real XLA trace of your own: a small sharded JAX program on CPU devices, no TPU needed.

Trains a stack of layers that use every collective of a large job on a mesh of CPU devices of one
process (all on this machine, however many cores it has), first without the profiler and then
under `jax.profiler`, and writes

- `localhost.xplane.pb.gz`: the trace as the profiler writes it, with the compiled programs (HLO)
  that say sizes and groups, less the name of the machine;
- `truth.json`: the settings, and the step times that the script's own clock measured, with and
  without the profiler, to hold against what an analysis of the trace says.

The parameters are sharded over both axes of the mesh (`data` x `model`), the activations over the
batch. Each layer gathers its weights over `data` (fully sharded data parallel), gathers and
reduce-scatters its activations over `model` (tensor and sequence parallel), exchanges them there
and back (as experts do) and hands them on around the ring of `model` (as pipelines and ring
attention do). What the backward pass sends follows by differentiation. The layers run in a loop
on the device (`lax.scan`), so the trace shows bodies of loops beside the loops.

This needs JAX; nothing else of the repository does, and this script uses nothing of the package.
Run it as

    python examples/record_jax.py --out my_trace
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P
except ModuleNotFoundError as error:
    sys.exit(
        f"record_jax.py: no module named {error.name}: recording needs JAX "
        "(pip install 'whatif-sim[record-jax]'); reading traces does not"
    )

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

    #: Up, down and expert weights, of a layer or of all.
    Weights = tuple[Array, Array, Array]

# The first step compiles, and the first ones allocate.
WARMUP_STEPS = 5
PLAIN_STEPS = 20
# The profiler's own first steps are slower: they are traced and thrown away.
PROFILER_WARMUP_STEPS = 2

#: Of each axis of the mesh, from the outside in: device = data * (size of model) + model.
AXES = ("data", "model")


@dataclass(frozen=True)
class Settings:
    """What is run; stored beside the result. Sizes are those of the whole job."""

    data: int
    model: int
    layers: int
    width: int
    hidden: int
    batch: int
    steps: int


# How the parameters (of all layers: up, down, expert) and the activations lie on the mesh.
PARAMETERS = (P(None, "data", "model"), P(None, "model", "data"), P(None, "model", None))
ACTIVATIONS = P(AXES, None)


def layer(settings: Settings, x: Array, weights: Weights) -> Array:
    """One layer, as one device sees it."""
    up, down, expert = weights
    gathered = lax.all_gather(x, "model", axis=0, tiled=True)
    up = lax.all_gather(up, "data", axis=0, tiled=True)
    down = lax.all_gather(down, "data", axis=1, tiled=True)
    y = jnp.maximum(gathered @ up, 0) @ down
    y = lax.psum_scatter(y, "model", scatter_dimension=0, tiled=True)
    y = lax.all_to_all(y, "model", split_axis=1, concat_axis=0, tiled=True)
    y = jnp.tanh(y @ expert)
    y = lax.all_to_all(y, "model", split_axis=0, concat_axis=1, tiled=True)
    n = settings.model
    return x + lax.ppermute(y, "model", [(i, (i + 1) % n) for i in range(n)])


def make_step(settings: Settings, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Compile loss, gradients and update of one step."""

    def loss(parameters: Weights, x: Array, target: Array) -> Array:
        y, _ = lax.scan(lambda x, weights: (layer(settings, x, weights), None), x, parameters)
        return lax.psum(jnp.sum((y - target) ** 2), AXES) / settings.batch

    def step(parameters: Weights, x: Array, target: Array) -> tuple[Array, Weights]:
        value, gradients = jax.value_and_grad(loss)(parameters, x, target)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, gradients)

    return jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(PARAMETERS, ACTIVATIONS, ACTIVATIONS),
            out_specs=(P(), PARAMETERS),
        )
    )


class Job:
    """The training job, one step at a time."""

    def __init__(self, settings: Settings) -> None:
        mesh = jax.make_mesh((settings.data, settings.model), AXES)
        random = np.random.default_rng(0)

        def put(shape: tuple[int, ...], spec: P) -> Array:
            values = 0.02 * random.standard_normal(shape, dtype=np.float32)
            return jax.device_put(values, NamedSharding(mesh, spec))

        layers, width, hidden = settings.layers, settings.width, settings.hidden
        shapes = ((layers, width, hidden), (layers, hidden, width))
        shapes += ((layers, width, width // settings.model),)
        self.parameters = tuple(map(put, shapes, PARAMETERS))
        self.inputs = put((settings.batch, width), ACTIVATIONS)
        self.targets = put((settings.batch, width), ACTIVATIONS)
        self.function = make_step(settings, mesh)

    def step(self) -> None:
        """Run one step to its end on all devices."""
        _, self.parameters = jax.block_until_ready(
            self.function(self.parameters, self.inputs, self.targets)
        )


def time_steps(job: Job, steps: int) -> list[int]:
    """Durations in ns of steps, from end to end."""
    times = []
    mark = time.perf_counter_ns()
    for number in range(steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            job.step()
        now = time.perf_counter_ns()
        times.append(now - mark)
        mark = now
    return times


def time_profiled(job: Job, steps: int, out: Path) -> list[int]:
    """Durations in ns of the traced steps; leaves the trace in the folder `out`."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # stacks would carry paths of this machine
    with (
        tempfile.TemporaryDirectory() as thrown_away,
        jax.profiler.trace(thrown_away, profiler_options=options),
    ):
        time_steps(job, PROFILER_WARMUP_STEPS)
    with jax.profiler.trace(out, profiler_options=options):
        return time_steps(job, steps)


def fields(message: bytes) -> list[tuple[int, int, int]]:
    """Number, start and end of each field of a Protocol Buffers message of nested ones only."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at

    found = []
    at = 0
    while at < len(message):
        start = at
        key, at = varint(at)
        if key & 7 != 2:
            raise ValueError(f"field {key >> 3} of an XSpace is no message")
        length, at = varint(at)
        at += length
        found.append((key >> 3, start, at))
    return found


def write_trace(recorded: Path, out: Path) -> None:
    """Compress a trace, with the name of the machine taken out."""
    space = recorded.read_bytes()
    name = b"localhost"
    hostname = 4  # field of XSpace
    kept = b"".join(space[a:b] for number, a, b in fields(space) if number != hostname)
    # No time stamp and no file name in the header: the same trace gives the same bytes.
    with (
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as file,
    ):
        file.write(kept + bytes([hostname << 3 | 2, len(name)]) + name)


def record(settings: Settings, out: Path) -> None:
    """Run the job and write trace and measured step times into the folder `out`."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", settings.data * settings.model)
    # File names in the compiled program without their folders.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    job = Job(settings)
    gc.disable()
    time_steps(job, WARMUP_STEPS)
    plain = time_steps(job, PLAIN_STEPS)
    with tempfile.TemporaryDirectory() as scratch:
        profiled = time_profiled(job, settings.steps, Path(scratch))
        (trace,) = Path(scratch).glob("**/*.xplane.pb")
        out.mkdir(parents=True, exist_ok=True)
        write_trace(trace, out / "localhost.xplane.pb.gz")
    truth = {
        "settings": asdict(settings),
        "jax": jax.__version__,
        "plain_step_ns_median": round(statistics.median(plain)),
        "profiled_step_ns_median": round(statistics.median(profiled)),
        "plain_step_ns": plain,
        "profiled_step_ns": profiled,
    }
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(
        f"{out}: {settings.data * settings.model} devices, {settings.steps} steps; median step "
        f"{statistics.median(profiled) / 1e6:.1f} ms, without the profiler "
        f"{statistics.median(plain) / 1e6:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Record an XLA trace of a small sharded JAX program on CPU devices."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--data", type=int, default=2, help="mesh, data axis (default 2)")
    parser.add_argument("--model", type=int, default=4, help="mesh, model axis (default 4)")
    parser.add_argument("--layers", type=int, default=2, help="number of layers (default 2)")
    parser.add_argument("--width", type=int, default=256, help="width of activations")
    parser.add_argument("--hidden", type=int, default=1024, help="width inside layers")
    parser.add_argument("--batch", type=int, default=256, help="samples of a step, all devices")
    parser.add_argument("--steps", type=int, default=4, help="steps to trace (default 4)")
    arguments = vars(parser.parse_args())
    out = arguments.pop("out")
    for name, value in arguments.items():
        if value <= 0:
            parser.error(f"--{name} must be positive")
    settings = Settings(**arguments)
    if settings.data < 2 or settings.model < 2:
        parser.error("--data and --model must be at least 2: one device has nobody to talk to")
    devices = settings.data * settings.model
    for name, whole, parts in (
        ("batch", settings.batch, devices),
        ("width", settings.width, devices),
        ("hidden", settings.hidden, settings.model),
    ):
        if whole % parts:
            parser.error(f"--{name} must be a multiple of {parts} on this mesh")
    if any(out.glob("*")):
        parser.error(f"--out {out}: the folder is not empty, and its files would get mixed up")
    record(settings, out)


if __name__ == "__main__":
    main()
