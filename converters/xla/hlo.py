"""What one HLO instruction says: opcode, shapes, operands, groups.

An instruction is the same thing whether it was read from text (`hlo_text`: the long name of a
trace event) or from the Hlo Proto of a profile (`hlo_proto`). What it means for the network is
`collectives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bits of one element, by HLO's names of types (xla/xla_data.proto); what holds no data has none.
BITS = {
    "token": 0, "opaque": 0, "pred": 8,
    "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8,
    "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f4e2m1fn": 4, "f6e2m3fn": 6, "f6e3m2fn": 6,
    "f8e3m4": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8,
    "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

#: What profilers of GPUs call the types whose names no rule gives.
_TYPE_NAMES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
_TYPE_KINDS = {"s": "int", "u": "uint", "f": "float"}

#: No job has more devices, and no tensor more bytes; beyond that, a number is damage.
MOST_DEVICES = 1 << 18
MOST_BYTES = 1 << 55

#: Members of each group; empty for one group of all.
Groups = tuple[tuple[int, ...], ...]


class HloError(ValueError):
    """Text or a message that is no HLO instruction, or only the beginning of one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a value.

    Attributes
    ----------
    dtype : str
        HLO's name of the element type; ``tuple`` if it has parts.
    dims : tuple of int
        Sizes, upper bounds where they are dynamic.
    parts : tuple of Shape
        Elements of a tuple.
    space : int
        Memory space of the layout: 0 is the device's main memory.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    space: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the value itself, without padding.

        Raises
        ------
        HloError
            If the element type is unknown or the size impossible.
        """
        if self.dtype == "tuple":
            return sum(part.num_bytes for part in self.parts)
        if self.dtype not in BITS:
            raise HloError(f"unknown element type {self.dtype!r}")
        size = -(-prod(self.dims) * BITS[self.dtype] // 8)
        if not 0 <= size <= MOST_BYTES:
            raise HloError(f"impossible shape {list(self.dims)} of {self.dtype}")
        return size


def common_dtype(shapes: Iterable[Shape]) -> str:
    """Type of the elements of all shapes, by PyTorch's names; empty if it is not the same for all.

    Examples
    --------
    >>> common_dtype([Shape("bf16", (8,))]), common_dtype([Shape("f8e4m3fn", (8,))])
    ('bfloat16', 'float8_e4m3fn')
    >>> common_dtype([Shape("f32", (8,)), Shape("s32", (8,))])
    ''
    """
    found = set()
    waiting = list(shapes)
    while waiting:
        shape = waiting.pop()
        if shape.dtype == "tuple":
            waiting += shape.parts
        elif BITS.get(shape.dtype):
            found.add(shape.dtype)
    if len(found) != 1:
        return ""
    dtype = found.pop()
    if dtype in _TYPE_NAMES:
        return _TYPE_NAMES[dtype]
    bits, _, rest = dtype[1:].partition("e")
    return f"{_TYPE_KINDS[dtype[0]]}{bits}{f'_e{rest}' if rest else ''}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An HLO instruction, as far as a conversion needs it.

    Attributes
    ----------
    name, opcode : str
        As in HLO; the name without ``%``.
    shape : Shape
        Its result.
    operands : tuple of str
        Names of the operands.
    operand_shapes : tuple of Shape
        Their shapes; empty where the text does not give them.
    calls : tuple of str
        Computations that it calls.
    channel : bool
        Whether it has a channel.
    global_ids : bool
        Whether its groups consist of flattened ids of replica and partition.
    groups : tuple of tuple of int or None
        Replica groups; empty for one group of all, None where there is no such attribute.
    pairs : tuple of (int, int)
        Source and target of each transfer of a collective-permute, send or receive.
    to_host : bool
        Whether a send or receive goes to the host instead of another device.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...] = ()
    operand_shapes: tuple[Shape, ...] = ()
    calls: tuple[str, ...] = ()
    channel: bool = False
    global_ids: bool = False
    groups: Groups | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    to_host: bool = False


@dataclass(frozen=True)
class Program:
    """A compiled module.

    Attributes
    ----------
    name : str
        Name of the module.
    instructions : dict of str to Instruction
        All instructions of all computations by name, which is unique in a module; of those that
        only compute, nothing but the opcode.
    computations : dict of str to tuple of str
        Instructions of each computation.
    devices : tuple of tuple of int
        Global device ids by replica and partition, empty if unknown.
    """

    name: str
    instructions: dict[str, Instruction]
    computations: dict[str, tuple[str, ...]]
    devices: tuple[tuple[int, ...], ...] = ()


def iota_groups(
    groups: int, size: int, dims: tuple[int, ...], transpose: tuple[int, ...] = ()
) -> Groups:
    """Expand the iota form: the ids 0.. reshaped, transposed and cut into rows.

    Examples
    --------
    >>> iota_groups(4, 2, (2, 4), (1, 0))
    ((0, 4), (1, 5), (2, 6), (3, 7))

    Raises
    ------
    HloError
        If the numbers do not fit together.
    """
    count = _devices(dims)
    if groups < 1 or size < 1 or groups * size != count:
        raise HloError(f"groups [{groups},{size}] of {count} devices")
    return _rows(_transposed(np.arange(count), dims, transpose), size)


@dataclass(frozen=True, slots=True)
class MeshAxes:
    """The mesh form of groups: devices in a grid, and the axes along which a group extends.

    Attributes
    ----------
    sizes : tuple of int
        Size of each axis of the mesh.
    axes : tuple of (int, int, int)
        Of each axis of a group: its index, and the part of it that counts as (size before it,
        size); size 0 for the whole axis.
    devices : tuple of int
        Devices in the order of the mesh; empty for 0, 1, ...
    """

    sizes: tuple[int, ...]
    axes: tuple[tuple[int, int, int], ...]
    devices: tuple[int, ...] = ()


def mesh_groups(mesh: MeshAxes) -> Groups:
    """Expand the mesh form.

    Examples
    --------
    >>> mesh_groups(MeshAxes((2, 2), ((0, 1, 0),)))
    ((0, 2), (1, 3))
    >>> mesh_groups(MeshAxes((8,), ((0, 2, 2),)))
    ((0, 2), (1, 3), (4, 6), (5, 7))

    Raises
    ------
    HloError
        If the numbers do not fit together.
    """
    count = _devices(mesh.sizes)
    if mesh.devices and len(mesh.devices) != count:
        raise HloError(f"{len(mesh.devices)} devices in a mesh of {count}")
    if any(not 0 <= index < len(mesh.sizes) for index, _, _ in mesh.axes):
        raise HloError("an axis that the mesh does not have")
    dims: list[int] = []
    place: dict[tuple[int, int], int] = {}
    for index, whole in enumerate(mesh.sizes):
        # Cut the axis wherever a part of it that is used begins or ends.
        parts = [(before, size) for i, before, size in mesh.axes if i == index and size]
        cuts = sorted({1, whole, *(b for b, _ in parts), *(b * s for b, s in parts)})
        for low, high in zip(cuts[:-1] or [1], cuts[1:] or [1], strict=True):
            if low < 1 or high % low:
                raise HloError("parts of an axis that do not divide it")
            place[index, low] = len(dims)
            dims.append(high // low)
        if parts and cuts[-1] != whole:
            raise HloError("a part of an axis beyond its end")
    chosen: list[int] = []
    for index, before, size in mesh.axes:
        low, high = (before, before * size) if size else (1, mesh.sizes[index])
        while True:
            at = place.get((index, low))
            if at is None:
                raise HloError("parts of an axis that do not divide it")
            chosen.append(at)
            low *= dims[at]
            if low >= high:
                break
    if len(set(chosen)) != len(chosen):
        raise HloError("an axis that is used twice")
    others = [d for d in range(len(dims)) if d not in chosen]
    ids = np.array(mesh.devices or range(count)).reshape(dims).transpose([*others, *chosen])
    return _rows(ids, prod(dims[d] for d in chosen))


def iota_devices(count: int, dims: tuple[int, ...], transpose: tuple[int, ...]) -> tuple[int, ...]:
    """Devices of a mesh whose order is given by an iota.

    Raises
    ------
    HloError
        If the numbers do not fit together.
    """
    if _devices(dims) != count:
        raise HloError("an order of devices of another number than the mesh has")
    return tuple(_transposed(np.arange(count), dims, transpose).reshape(-1).tolist())


def _devices(dims: tuple[int, ...]) -> int:
    count = prod(dims)
    if not dims or min(dims) < 1 or count > MOST_DEVICES:
        raise HloError(f"impossible number of devices {list(dims)}")
    return count


def _transposed(ids: np.ndarray, dims: tuple[int, ...], transpose: tuple[int, ...]) -> np.ndarray:
    if transpose and sorted(transpose) != list(range(len(dims))):
        raise HloError(f"{list(transpose)} is no permutation of {len(dims)} dimensions")
    shaped = ids.reshape(dims)
    return shaped.transpose(transpose) if transpose else shaped


def _rows(ids: np.ndarray, size: int) -> Groups:
    return tuple(tuple(row) for row in ids.reshape(-1, size).tolist())
