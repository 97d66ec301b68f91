"""Reading a compiled module from the Hlo Proto that a profile keeps of it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from .collectives import has_details
from .hlo import (
    Groups,
    HloError,
    Instruction,
    MeshAxes,
    Program,
    Shape,
    iota_devices,
    iota_groups,
    mesh_groups,
)
from .hlo_text import _SEND_RECV_PAIRS
from .protos import message

#: Names of the element types by number (PrimitiveType of xla/xla_data.proto).
_DTYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16",
    17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4",
    23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "tuple",
    35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip


def parse_program(data: bytes) -> Program:
    """Read a module.

    Parameters
    ----------
    data : bytes
        A serialized HloProto.

    Returns
    -------
    Program

    Raises
    ------
    HloError
        If the bytes are no HloProto, or contradict themselves.
    """
    hlo = message("Hlo")()
    try:
        hlo.ParseFromString(data)
    except DecodeError as error:
        raise HloError("the Hlo Proto is damaged") from error
    module = hlo.hlo_module
    name_of = {c.id: _text(c.name) for c in module.computations}
    instructions: dict[str, Instruction] = {}
    computations: dict[str, tuple[str, ...]] = {}
    for computation in module.computations:
        by_id = {i.id: i for i in computation.instructions}
        for proto in computation.instructions:
            instruction = _instruction(proto, by_id, name_of)
            instructions[instruction.name] = instruction
        computations[_text(computation.name)] = tuple(
            _text(i.name) for i in computation.instructions
        )
    return Program(_text(module.name), instructions, computations, _devices(module))


def _devices(module: Any) -> tuple[tuple[int, ...], ...]:  # noqa: ANN401
    """Global device ids by replica and partition."""
    assignment = module.device_assignment
    partitions = [tuple(c.replica_device_ids) for c in assignment.computation_devices]
    if len({len(p) for p in partitions}) != 1:
        return ()
    return tuple(zip(*partitions, strict=True))


def _instruction(proto: Any, by_id: dict[int, Any], name_of: dict[int, str]) -> Instruction:  # noqa: ANN401
    opcode = _text(proto.opcode)
    if not has_details(opcode):
        return Instruction(_text(proto.name), opcode, Shape("opaque"))
    operands = [by_id[i] for i in proto.operand_ids if i in by_id]
    pairs = tuple((p.source, p.target) for p in proto.source_target_pairs)
    if not pairs and proto.frontend_attributes.map:
        text = " ".join(f'{_text(a.key)}="{_text(a.value)}"' for a in proto.frontend_attributes.map)
        if match := _SEND_RECV_PAIRS.search(text):
            numbers = [int(n) for n in match[1].replace("{", "").replace("}", "").split(",") if n]
            pairs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    return Instruction(
        name=_text(proto.name),
        opcode=opcode,
        shape=_shape(proto.shape),
        operands=tuple(_text(o.name) for o in operands),
        operand_shapes=(
            tuple(_shape(o.shape) for o in operands)
            if len(operands) == len(proto.operand_ids)
            else ()
        ),
        calls=tuple(name_of[c] for c in proto.called_computation_ids if c in name_of),
        channel=proto.channel_id > 0,
        global_ids=proto.use_global_device_ids,
        groups=_groups(proto),
        pairs=pairs,
        to_host=proto.is_host_transfer,
    )


def _shape(proto: Any) -> Shape:  # noqa: ANN401
    if proto.tuple_shapes:
        return Shape("tuple", parts=tuple(_shape(part) for part in proto.tuple_shapes))
    dtype = _DTYPES.get(proto.element_type, f"type {proto.element_type}")
    return Shape(dtype, tuple(proto.dimensions), space=proto.layout.memory_space)


def _groups(proto: Any) -> Groups | None:  # noqa: ANN401
    if proto.HasField("mesh_groups"):
        mesh = proto.mesh_groups.mesh
        sizes = tuple(axis.size for axis in mesh.axes)
        devices = tuple(mesh.device_ids)
        if mesh.HasField("iota_transform"):
            order = mesh.iota_transform
            count = 1
            for size in sizes:
                count *= size
            devices = iota_devices(count, tuple(order.reshape_dims), tuple(order.transpose_perm))
        axes = tuple(
            (axis.mesh_axis_index, axis.sub_axis_info.pre_size or 1, axis.sub_axis_info.size)
            for axis in proto.mesh_groups.axes
        )
        return mesh_groups(MeshAxes(sizes, axes, devices))
    iota = proto.iota_groups
    if not proto.HasField("iota_groups"):
        iota = proto.collective_device_list.iota
    if iota.num_replica_groups:
        return iota_groups(
            iota.num_replica_groups,
            iota.num_devices_per_group,
            tuple(iota.iota_reshape_dims),
            tuple(iota.iota_transpose_perm),
        )
    listed = proto.collective_device_list.replica_groups or proto.replica_groups
    groups = tuple(tuple(group.replica_ids) for group in listed)
    if groups or proto.HasField("collective_device_list"):
        return groups
    return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
