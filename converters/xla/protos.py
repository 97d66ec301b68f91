"""Descriptors of the few protobuf messages that are decoded as a whole.

Only the fields that a conversion uses are described; protobuf skips the others. Text is declared
as bytes, so that a name that is no UTF-8 costs a character and not the file. Field numbers are
those of tsl/profiler/protobuf/xplane.proto, xla/service/hlo.proto and xla/xla_data.proto.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "whatif.xla"
_SCALARS = {
    "int": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}
# Message: {field: (number, type)}; a type in brackets is repeated.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Stat": {
        "metadata_id": (1, "int"),
        "double_value": (2, "double"),
        "uint64_value": (3, "uint"),
        "int64_value": (4, "int"),
        "str_value": (5, "bytes"),
        "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint"),
    },
    "EventMetadata": {
        "id": (1, "int"),
        "name": (2, "bytes"),
        "display_name": (4, "bytes"),
        "stats": (5, "[Stat]"),
    },
    "EventMetadataEntry": {"key": (1, "int"), "value": (2, "EventMetadata")},
    "StatMetadata": {"id": (1, "int"), "name": (2, "bytes")},
    "StatMetadataEntry": {"key": (1, "int"), "value": (2, "StatMetadata")},
    # tsl/profiler's op_metrics: which core of the job a plane is of.
    "CoreDetails": {"global_chip_id": (5, "int"), "global_core_id": (6, "int")},
    "Layout": {"element_size_in_bits": (7, "int"), "memory_space": (8, "int")},
    "Shape": {
        "element_type": (2, "int"),
        "dimensions": (3, "[int]"),
        "tuple_shapes": (4, "[Shape]"),
        "layout": (5, "Layout"),
    },
    "ReplicaGroup": {"replica_ids": (1, "[int]")},
    "SourceTarget": {"source": (1, "int"), "target": (2, "int")},
    "IotaGroups": {
        "num_replica_groups": (1, "int"),
        "num_devices_per_group": (2, "int"),
        "iota_reshape_dims": (3, "[int]"),
        "iota_transpose_perm": (4, "[int]"),
    },
    # Field 2 was used for the iota form before that became a field of the instruction.
    "DeviceList": {"replica_groups": (1, "[ReplicaGroup]"), "iota": (2, "IotaGroups")},
    "MeshAxis": {"name": (1, "bytes"), "size": (2, "int")},
    "IotaTransform": {"reshape_dims": (1, "[int]"), "transpose_perm": (2, "[int]")},
    "Mesh": {
        "axes": (1, "[MeshAxis]"),
        "device_ids": (2, "[int]"),
        "iota_transform": (3, "IotaTransform"),
    },
    "SubAxis": {"pre_size": (1, "int"), "size": (2, "int")},
    "AxisRef": {"mesh_axis_index": (1, "int"), "sub_axis_info": (2, "SubAxis")},
    "MeshGroups": {"mesh": (1, "Mesh"), "axes": (2, "[AxisRef]")},
    "Attribute": {"key": (1, "bytes"), "value": (2, "bytes")},
    "FrontendAttributes": {"map": (1, "[Attribute]")},
    "Instruction": {
        "name": (1, "bytes"),
        "opcode": (2, "bytes"),
        "shape": (3, "Shape"),
        "channel_id": (26, "int"),
        "id": (35, "int"),
        "operand_ids": (36, "[int]"),
        "called_computation_ids": (38, "[int]"),
        "is_host_transfer": (47, "bool"),
        "replica_groups": (49, "[ReplicaGroup]"),
        "source_target_pairs": (52, "[SourceTarget]"),
        "frontend_attributes": (68, "FrontendAttributes"),
        "use_global_device_ids": (71, "bool"),
        "collective_device_list": (87, "DeviceList"),
        "iota_groups": (92, "IotaGroups"),
        "mesh_groups": (93, "MeshGroups"),
    },
    "Computation": {
        "name": (1, "bytes"),
        "instructions": (2, "[Instruction]"),
        "id": (5, "int"),
        "root_id": (6, "int"),
    },
    "ComputationDevice": {"replica_device_ids": (1, "[int]")},
    "DeviceAssignment": {
        "replica_count": (1, "int"),
        "computation_count": (2, "int"),
        "computation_devices": (3, "[ComputationDevice]"),
    },
    "Module": {
        "name": (1, "bytes"),
        "computations": (3, "[Computation]"),
        "device_assignment": (15, "DeviceAssignment"),
    },
    "Hlo": {"hlo_module": (1, "Module")},
}


@cache
def message(name: str) -> Any:  # noqa: ANN401 (protobuf makes the classes at run time)
    """Class of a message by its name in the table of this module."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="whatif/xla.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = kind.startswith("[")
            base = kind.strip("[]")
            added = described.field.add(
                name=field,
                number=number,
                label=(
                    descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                    if repeated
                    else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
                ),
            )
            if base in _SCALARS:
                added.type = _SCALARS[base]
            else:
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
