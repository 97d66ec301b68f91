"""What the names of device kernels say: those that communicate, and those that copy."""

from __future__ import annotations

import re

from ..graph.columns import Collective

#: Kernels of communication libraries, tested on the lower-case name without its argument list.
#: Families and names: NCCL (all generations), RCCL, MSCCL++, PyTorch symmetric memory, vLLM and
#: SGLang custom all-reduce, TensorRT-LLM and FlashInfer fused all-reduce, DeepEP, NVSHMEM, oneCCL.
_COMM_KERNEL = re.compile(
    r"^(void )?(\w+::|\(anonymous namespace\)::)*("
    r"nccl(dev|sym|symk)?(dev)?kernel|nccl[a-z]*ring|nccl[a-z]*tree|ncclsendrecv|rcclgeneric|mscclkernel"
    r"|multimem_(one_shot_)?all_(reduce|gather)|(one|two)_shot_all_reduce"
    r"|cross_device_reduce_|allreduce_prototype|allreduce_fusion_kernel"
    r"|oneccl_|nvshmem(?!.*barrier_init))"
    r"|mscclpp::|deep_ep::(intranode|internode|internode_ll)::(?!clean|get_dispatch)"
    r"|ar_fusion::"
)

_BY_KERNEL_NAME: tuple[tuple[str, Collective], ...] = (
    ("reducescatter", Collective.REDUCE_SCATTER),
    ("alltoall", Collective.ALL_TO_ALL),
    ("allreduce", Collective.ALL_REDUCE),
    ("all_reduce", Collective.ALL_REDUCE),
    ("cross_device_reduce", Collective.ALL_REDUCE),
    ("ar_fusion", Collective.ALL_REDUCE),
    ("allgather", Collective.ALL_GATHER),
    ("all_gather", Collective.ALL_GATHER),
    ("broadcast", Collective.BROADCAST),
    ("dispatch", Collective.ALL_TO_ALL),
    ("combine", Collective.ALL_TO_ALL),
    ("reduce", Collective.REDUCE),
)


def is_communication_kernel(name: str) -> bool:
    """Whether a device kernel moves data between ranks."""
    return _COMM_KERNEL.search(name.lower()) is not None


def collective_from_kernel(name: str) -> Collective:
    """Operation that a kernel name hints at; NONE where it does not (SendRecv, Generic)."""
    head = name.lower().split("(", 1)[0]
    for text, coll in _BY_KERNEL_NAME:
        if text in head:
            return coll
    return Collective.NONE


_COPY_KERNEL = re.compile(r"__amd_rocclr_(copy|fill)buffer|^memory_copy_", re.IGNORECASE)


def is_copy_kernel(name: str) -> bool:
    """Whether a row of category kernel is a copy or fill (ROCm 7.1 labels them so)."""
    return _COPY_KERNEL.search(name) is not None
