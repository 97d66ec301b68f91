"""HLO instructions: shapes, sizes, groups in every form, and text that is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.converters.xla.collectives import CommSpec, Ids, Role, communication, find_meaning
from whatif.converters.xla.events import OpInfo
from whatif.converters.xla.hlo import HloError, MeshAxes, iota_groups, mesh_groups
from whatif.converters.xla.hlo_proto import parse_program
from whatif.converters.xla.hlo_text import (
    parse_groups,
    parse_instruction,
    parse_opcode,
    parse_shape,
)
from whatif.converters.xla.ids import DeviceGrid
from whatif.graph.columns import Collective

from .xla_file import BF16, F32, TUPLE, array, hlo_proto, instruction


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)}", 10_485_760),
        ("f32[]", 4),
        ("pred[3]", 3),
        ("s4[3]", 2),
        ("u4[4]{0:T(8,128)E(4)}", 2),
        ("f4e2m1fn[5120,5120]{1,0:T(64,128)(8,1)E(4)}", 13_107_200),
        ("f8e4m3fn[7]", 7),
        ("f8e5m2[7]", 7),
        ("f8e4m3b11fnuz[7]", 7),
        ("c128[2]", 32),
        ("token[]", 0),
        ("f32[<=8,2]", 64),
        ("(bf16[4]{0}, /*index=1*/ (f32[2], s8[3]))", 8 + 8 + 3),
        ("()", 0),
        ("f32[0]", 0),
    ],
)
def test_a_shape_has_the_bytes_of_its_elements(text: str, size: int) -> None:
    assert parse_shape(text).num_bytes == size


def test_an_unknown_element_type_is_an_error_when_its_size_is_asked_for() -> None:
    shape = parse_shape("q7[3]")
    with pytest.raises(HloError, match="unknown element type 'q7'"):
        _ = shape.num_bytes


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ()),
        ("[1,2]<=[2]", ((0, 1),)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=2] {'axis_0'}", ((0, 2), (1, 3))),
        ("mesh[x=2,y=2] {x,y}", ((0, 1, 2, 3),)),
        ("mesh[x=2,y=2] {y,x}", ((0, 2, 1, 3),)),
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)
def test_groups_are_read_in_every_form(text: str, groups: object) -> None:
    assert parse_groups(text) == groups


@given(st.permutations(range(3)), st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 2))
def test_the_iota_form_is_an_arange_reshaped_and_transposed(
    perm: list[int], dims: tuple[int, int, int], cut: int
) -> None:
    flat = np.arange(np.prod(dims)).reshape(dims).transpose(perm).reshape(-1)
    size = dims[cut]
    groups = iota_groups(len(flat) // size, size, dims, tuple(perm))
    assert groups == tuple(tuple(row) for row in flat.reshape(-1, size).tolist())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_the_groups_of_a_mesh_are_its_devices_each_once(
    sizes: list[int], data: st.DataObject
) -> None:
    axes = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    groups = mesh_groups(MeshAxes(tuple(sizes), tuple((a, 1, 0) for a in axes)))
    assert sorted(d for group in groups for d in group) == list(range(int(np.prod(sizes))))
    grid = np.arange(int(np.prod(sizes))).reshape(sizes)
    for group in groups:
        places = [tuple(int(i) for i in np.argwhere(grid == d)[0]) for d in group]
        fixed = [i for i in range(len(sizes)) if i not in axes]
        assert len({tuple(p[i] for i in fixed) for p in places}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[2,4]<=[7]",
        "[2,4]<=[8]T(0,0)",
        "[0,0]<=[0]",
        "[2,4]",
        "{{0,1},{2",
        "[99999999,99999999]<=[99999999,99999999]",
        "mesh[x=2] {y}",
        "mesh[x=8] {x:(3)2}",
        "everyone",
    ],
)
def test_groups_that_do_not_fit_together_are_an_error(text: str) -> None:
    with pytest.raises(HloError):
        parse_groups(text)


ALL_GATHER = (
    "%all-gather.3 = s32[2,1,8]{2,1,0:T(1,128)S(1)} all-gather(s32[1,1,8]{2,1,0} %bitcast.11), "
    "channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}, use_global_device_ids=true"
)


def test_an_instruction_is_read_from_its_text() -> None:
    read = parse_instruction(ALL_GATHER)
    assert (read.name, read.opcode) == ("all-gather.3", "all-gather")
    assert read.operands == ("bitcast.11",)
    assert [shape.num_bytes for shape in read.operand_shapes] == [32]
    assert read.shape.num_bytes == 64
    assert read.groups == ((0, 1),)
    assert read.channel
    assert read.global_ids


@pytest.mark.parametrize("length", range(40, len(ALL_GATHER) - 1, 7))
def test_text_that_is_cut_is_refused_not_guessed(length: int) -> None:
    """Whatever is left must say the same, or that it is cut."""
    try:
        read = parse_instruction(ALL_GATHER[:length])
    except HloError:
        return
    assert read.operand_shapes[0].num_bytes == 32
    # Attributes that are whole may follow; one that is cut may not be taken for its beginning.
    assert read.groups in (None, ((0, 1),))


def test_the_opcode_is_what_counts_not_a_name_or_an_operand() -> None:
    text = "%all-reduce.9 = f32[4] fusion(f32[4] %all-gather.1), kind=kLoop, calls=%all-to-all"
    assert parse_opcode(text) == ("all-reduce.9", "fusion")
    assert find_meaning(OpInfo("all-reduce.9", text, "loop fusion"), None).role is Role.COMPUTE
    named = "%psum.7 = f32[4] all-reduce(f32[4] %x), replica_groups={{0,1}}, to_apply=%add"
    meaning = find_meaning(OpInfo("psum.7", named, "all-reduce"), None)
    assert meaning.spec is not None
    assert meaning.spec.coll is Collective.ALL_REDUCE


def spec_of(text: str) -> CommSpec:
    return communication(parse_instruction(text), "")


GROUPS = "replica_groups=[2,4]<=[8], use_global_device_ids=true, channel_id=1"


@pytest.mark.parametrize(
    ("text", "coll", "size"),
    [
        (f"%a = f32[32,8] all-gather(f32[8,8] %x), {GROUPS}", Collective.ALL_GATHER, 256),
        (f"%a = f32[32,8] all-gather(%x), {GROUPS}", Collective.ALL_GATHER, 256),
        (f"%a = (f32[8,8], f32[32,8]) all-gather-start(f32[8,8] %x), {GROUPS}",
         Collective.ALL_GATHER, 256),
        (f"%a = (f32[8,8], f32[32,8]) all-gather-start(%x), {GROUPS}", Collective.ALL_GATHER, 256),
        (f"%a = f32[8,8] reduce-scatter(f32[32,8] %x), {GROUPS}", Collective.REDUCE_SCATTER, 1024),
        (f"%a = f32[8,8] reduce-scatter(%x), {GROUPS}", Collective.REDUCE_SCATTER, 1024),
        (f"%a = f32[8,8] all-reduce(f32[8,8] %x), {GROUPS}", Collective.ALL_REDUCE, 256),
        (f"%a = (f32[8,8], bf16[3]) all-reduce(f32[8,8] %x, bf16[3] %y), {GROUPS}",
         Collective.ALL_REDUCE, 262),
        (f"%a = (f32[8,8], bf16[3]) all-reduce-start(%x, %y), {GROUPS}",
         Collective.ALL_REDUCE, 262),
        ((f"%a = (f32[2], f32[2], f32[2], f32[2]) all-to-all(f32[2] %a, f32[2] %b, f32[2] %c, "
         f"f32[2] %d), {GROUPS}"), Collective.ALL_TO_ALL, 32),
        (f"%a = f8e4m3fn[64] all-reduce(f8e4m3fn[64] %x), {GROUPS}", Collective.ALL_REDUCE, 64),
        (("%a = (f32[9], f32[9], u32[], u32[]) collective-permute-start(f32[9] %x), "
         "source_target_pairs={{0,1},{1,0}}"), Collective.SEND_RECV, 36),
        (("%a = (f32[9], f32[9], u32[], u32[]) collective-permute-start(%x), "
         "source_target_pairs={{0,1},{1,0}}"), Collective.SEND_RECV, 36),
    ],
)  # fmt: skip
def test_the_input_of_one_device_is_what_counts(text: str, coll: Collective, size: int) -> None:
    spec = spec_of(text)
    assert (spec.coll, spec.size_bytes) == (coll, size)


def test_an_unknown_opcode_is_computation_and_is_reported() -> None:
    meaning = find_meaning(OpInfo("x", "%x = f32[4] warp-drive(f32[4] %y)"), None)
    assert meaning.role is Role.COMPUTE
    assert meaning.doubt == "opcode 'warp-drive' is unknown: taken as computation"


def test_a_program_says_the_same_as_its_text() -> None:
    groups = {1: [{1: [0, 1, 2, 3]}, {1: [4, 5, 6, 7]}]}
    iota = {1: 4, 2: 2, 3: [2, 4], 4: [1, 0]}
    mesh = {1: {1: [{1: "x", 2: 2}, {1: "y", 2: 4}]}, 2: [{1: 1}]}
    program = parse_program(
        hlo_proto(
            "jit_f",
            {
                "main": [
                    instruction("x", "parameter", array(F32, 8, 8), 1),
                    instruction("ag", "all-gather", array(F32, 32, 8), (1 << 33) + 2,
                                operand_ids=[1], channel_id=1, use_global_device_ids=1,
                                collective_device_list=groups),
                    instruction("ar", "all-reduce",
                                {2: TUPLE, 4: [array(F32, 8, 8), array(BF16, 3)]}, 3,
                                operand_ids=[1], iota=iota),
                    instruction("legacy", "all-reduce", array(F32, 8, 8), 4, operand_ids=[1],
                                collective_device_list={2: iota}),
                    instruction("old", "all-reduce", array(F32, 8, 8), 5, operand_ids=[1],
                                replica_groups=groups[1]),
                    instruction("meshed", "all-reduce", array(F32, 8, 8), 6, operand_ids=[1],
                                mesh=mesh),
                    instruction("permute", "collective-permute", array(F32, 8, 8), 7,
                                operand_ids=[1], source_target_pairs=[{2: 1}, {1: 1}]),
                ]
            },
            devices=[[d] for d in range(8)],
        )
    )  # fmt: skip
    of = program.instructions
    rows = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert of["ag"].groups == of["old"].groups == of["meshed"].groups == rows
    assert of["ar"].groups == of["legacy"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert of["permute"].pairs == ((0, 1), (1, 0))
    assert communication(of["ag"], "").size_bytes == 256
    assert program.devices == (tuple(range(8)),)


def test_ids_mean_what_the_mode_of_the_operation_says() -> None:
    """Two replicas of three partitions on devices 10 to 15."""
    grid = DeviceGrid(((10, 11, 12), (13, 14, 15)))
    rows: list[tuple[Ids, tuple[tuple[int, ...], ...], int, tuple[int, ...]]] = [
        (Ids.FLAT, ((0, 4), (1, 5)), 14, (10, 14)),
        (Ids.REPLICA, ((0, 1),), 12, (12, 15)),
        (Ids.PARTITION, ((0, 2), (1,)), 15, (13, 15)),
        (Ids.REPLICA_ALL, ((1,), (0,)), 11, (10, 11, 12)),
        (Ids.REPLICA_ALL, (), 11, (10, 11, 12, 13, 14, 15)),
    ]
    for ids, groups, device, members in rows:
        spec = CommSpec(Collective.ALL_REDUCE, 4, groups, ids)
        assert grid.members(spec, device) == members, ids
    assert grid.members(CommSpec(Collective.ALL_REDUCE, 4, ((0, 4),), Ids.FLAT), 12) == ()
    with pytest.raises(HloError, match="a replica group with 9 where there are 6"):
        grid.members(CommSpec(Collective.ALL_REDUCE, 4, ((0, 9),), Ids.FLAT), 10)


@pytest.mark.parametrize(
    ("text", "category", "role"),
    [
        ("%f = f32[8] fusion(f32[8] %x, f32[8", "loop fusion", Role.COMPUTE),
        ("%f = f32[8] fusion(f32[8] %x, f32[8", "", Role.COMPUTE),
        ("%c = (f32[8], f32[8], u32[]) copy-start(f32[8] %", "copy-start", Role.COPY_START),
        ("%w = (f32[8]) while((f32[8]) %t), condition=%c, bo", "while", Role.CONTAINER),
        ("%d = f32[8] all-reduce-done(f32[8] %", "all-reduce-done", Role.DONE),
        ("%x = f32[8] add(f32[8]", "", Role.COMPUTE),
    ],
)
def test_only_communication_needs_its_whole_text(text: str, category: str, role: Role) -> None:
    assert find_meaning(OpInfo("x", text, category), None).role is role


def test_text_that_is_cut_before_the_opcode_is_reported() -> None:
    meaning = find_meaning(OpInfo("x", "%x = f32[8]{0:T(10"), None)
    assert meaning.doubt == (
        "operations whose HLO text is cut before the opcode: taken as computation"
    )
    with pytest.raises(HloError, match="cut off"):
        find_meaning(OpInfo("x", "%x = f32[8] all-reduce(f32[8] %y), replica_gr"), None)
