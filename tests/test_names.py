"""Names of kernels, calls, collectives and data types mean what they should."""

from __future__ import annotations

import pytest
from whatif.converters.kernels import collective_from_kernel, is_communication_kernel
from whatif.converters.kineto.comms import parse_ranks
from whatif.converters.kineto.names import (
    Call,
    classify_call,
    collective_from_op,
    dtype_bytes,
    dtype_name,
)
from whatif.graph.columns import Collective


@pytest.mark.parametrize(
    "name",
    [
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclSendRecvKernel_copy_i8",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllGather_LL",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32",
        "mscclKernel_Sum_half_Simple_false",
        "void mscclpp::allreduce7<__half>(...)",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, ...)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16>(...)",
        "void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*, ...)",
        "void quickreduce::allreduce_prototype_twoshot<...>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, ...)",
        "oneccl_allreduce_kernel",
    ],
)
def test_communication_kernels_of_all_families_are_recognised(name: str) -> None:
    assert is_communication_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "triton_poi_fused_add_all_reduce_4",
        "void at::native::vectorized_gather_kernel<16, long>",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
        "void deep_ep::layout::get_dispatch_layout<256>(...)",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    ],
)
def test_compute_kernels_with_similar_names_are_not_communication(name: str) -> None:
    assert not is_communication_kernel(name)


@pytest.mark.parametrize(
    ("name", "coll"),
    [
        ("allreduce", Collective.ALL_REDUCE),
        ("allreduce_coalesced", Collective.ALL_REDUCE),
        ("_allgather_base", Collective.ALL_GATHER),
        ("allgather_into_tensor_coalesced", Collective.ALL_GATHER),
        ("_reduce_scatter_base", Collective.REDUCE_SCATTER),
        ("reduce_scatter_tensor_coalesced", Collective.REDUCE_SCATTER),
        ("all_to_allv", Collective.ALL_TO_ALL),
        ("alltoall_base", Collective.ALL_TO_ALL),
        ("nccl:_all_gather_base", Collective.ALL_GATHER),
        ("gloo:all_to_all", Collective.ALL_TO_ALL),
        ("send", Collective.SEND_RECV),
        ("nccl:recv 0<-1", Collective.NONE),
        ("wait", Collective.NONE),
        ("init", Collective.NONE),
        ("symm_mem::multimem_all_reduce_", Collective.ALL_REDUCE),
        ("_C_custom_ar::all_reduce", Collective.ALL_REDUCE),
    ],
)
def test_operation_names_give_the_collective(name: str, coll: Collective) -> None:
    assert collective_from_op(name) is coll


def test_a_kernel_name_is_a_hint_only_where_it_names_an_operation() -> None:
    name = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)"
    assert collective_from_kernel(name) is Collective.ALL_REDUCE
    assert collective_from_kernel("ncclDevKernel_SendRecv(ncclDevComm*)") is Collective.NONE
    assert collective_from_kernel("ncclDevKernel_Generic(x)") is Collective.NONE


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Long", 8), ("long int", 8), ("Double", 8), ("Float", 4), ("float", 4), ("Int", 4),
        ("Half", 2), ("c10::Half", 2), ("BFloat16", 2), ("c10::BFloat16", 2), ("Short", 2),
        ("Char", 1), ("Byte", 1), ("unsigned char", 1), ("Bool", 1), ("Float8_e4m3fn", 1),
        ("c10::Float8_e5m2", 1), ("ComplexFloat", 8), ("Quaternion", None),
    ],
)  # fmt: skip
def test_data_types_have_their_own_width_and_unknown_ones_none(name: str, size: int | None) -> None:
    assert dtype_bytes(name) == size


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cudaLaunchKernelExC", Call.LAUNCH), ("cuLaunchKernel", Call.LAUNCH),
        ("hipExtModuleLaunchKernel", Call.LAUNCH), ("cudaGraphLaunch", Call.LAUNCH),
        ("cudaMemcpyAsync", Call.LAUNCH), ("cudaStreamWaitEvent", Call.WAIT_EVENT),
        ("cudaEventRecordWithFlags", Call.RECORD_EVENT),
        ("cudaStreamSynchronize", Call.SYNC_STREAM), ("hipDeviceSynchronize", Call.SYNC_DEVICE),
        ("cudaEventSynchronize", Call.SYNC_EVENT), ("cudaEventQuery", Call.OTHER),
        ("cudaLaunchHostFunc", Call.OTHER),
    ],
)  # fmt: skip
def test_runtime_calls_are_told_apart_by_what_they_order(name: str, call: Call) -> None:
    assert classify_call(name) is call


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[0, 1, 2, 3]", 4, (0, 1, 2, 3)),
        ("[]", 8, None),
        (str(list(range(0, 60, 2)))[:-1] + ", ...]", 64, tuple(range(0, 128, 2))),
        (str(list(range(1, 117, 4)))[:-1] + ", ..., 125]", 32, tuple(range(1, 126, 4))),
        ("[0, 4, 8, ..., 124]", 31, None),  # 32 ranks by its stride: contradicts the size
        ("[3, 1, 0]", 3, (3, 1, 0)),
        ([0, 5], 0, (0, 5)),
        ("[0, 1]", 8, None),
    ],
)
def test_truncated_rank_lists_are_rebuilt_or_refused(
    text: object, size: int, ranks: tuple[int, ...] | None
) -> None:
    assert parse_ranks(text, size) == ranks


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *(("Half", "float16"), ("c10::Half", "float16"), ("BFloat16", "bfloat16")),
        *(("float", "float32"), ("long int", "int64"), ("torch.float32", "float32")),
        *(("c10::complex<float>", "complex64"), ("Float8_e4m3fn", "float8_e4m3fn")),
    ],
)
def test_spellings_of_a_data_type_become_one(spelling: str, name: str) -> None:
    assert dtype_name(spelling) == name
