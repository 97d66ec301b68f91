"""Reading an HLO instruction from its text, the long name of a trace event.

The text begins with the result, ``%name = shape opcode(operands), attributes``. Tools cut long
names, so a text may end anywhere: `parse_opcode` needs only its beginning, `parse_instruction`
refuses what is cut.
"""

from __future__ import annotations

import re

from .hlo import (
    Groups,
    HloError,
    Instruction,
    MeshAxes,
    Shape,
    iota_devices,
    iota_groups,
    mesh_groups,
)

_NAME = re.compile(r"\s*(?:ROOT\s+)?%?([^\s=%]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9-]*)\(")
_DTYPE = re.compile(r"\s*(?:/\*.*?\*/\s*)?([a-z][a-z0-9]*)\[([^\]]*)\]")
_SPACE = re.compile(r"S\((\d{1,9})\)")
_OPERAND = re.compile(r"\s*(?:/\*.*?\*/\s*)?%?([^\s,()]*)\s*$")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"@?mesh(?:[\w.]*)\[([^\]]*)\]\s*(?:,?\s*device_ids=\(([^)]*(?:\([^)]*\))?)\)\s*)?,?\s*\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"\s*['\"]?([^'\"=,]+?)['\"]?\s*=\s*(\d+)\s*$")
_AXIS_REF = re.compile(r"\s*['\"]?([^'\":,]+?)['\"]?\s*(?::\((\d+)\)(\d+))?\s*$")
_SEND_RECV_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="((?:\{|\}|\d|,)*)"')
_OPEN, _CLOSE = "([{", ")]}"
_CALLS = ("calls", "to_apply", "body", "condition", "true_computation", "false_computation")


def parse_opcode(text: str) -> tuple[str, str]:
    """Name and opcode of an instruction, from the beginning of its text.

    Raises
    ------
    HloError
        If the text is no HLO, or is cut before the opcode.
    """
    name, _, opcode, _ = _head(text)
    return name, opcode


def parse_instruction(text: str) -> Instruction:
    """Read a whole instruction.

    Parameters
    ----------
    text : str
        Its text.

    Returns
    -------
    Instruction

    Raises
    ------
    HloError
        If the text is no HLO, or is cut.

    Examples
    --------
    >>> text = "%ag = f32[8] all-gather(f32[2] %x), replica_groups=[1,4]<=[4], dimensions={0}"
    >>> parse_instruction(text).groups
    ((0, 1, 2, 3),)
    """
    name, shape, opcode, at = _head(text)
    end = _matching(text, at - 1)
    operands, shapes = [], []
    for part in _split(text[at:end]):
        operand_shape, after = _optional_shape(part)
        match = _OPERAND.match(part, after)
        operands.append(match[1] if match else "")
        if operand_shape is not None:
            shapes.append(operand_shape)
    attributes = dict(_attribute(part) for part in _split(text[end + 1 :].lstrip(", ")))
    groups = attributes.get("replica_groups")
    pairs = attributes.get("source_target_pairs", "")
    if opcode in ("collective-permute", "collective-permute-start") and not pairs:
        raise HloError("no source_target_pairs")
    if match := _SEND_RECV_PAIRS.search(attributes.get("frontend_attributes", "")):
        pairs = pairs or match[1]
    return Instruction(
        name=name,
        opcode=opcode,
        shape=shape,
        operands=tuple(operands),
        operand_shapes=tuple(shapes) if len(shapes) == len(operands) else (),
        calls=tuple(attributes[key].lstrip("%") for key in _CALLS if key in attributes),
        channel=attributes.get("channel_id", "0") != "0",
        global_ids=attributes.get("use_global_device_ids") == "true",
        groups=None if groups is None else parse_groups(groups),
        pairs=tuple((int(a), int(b)) for a, b in _PAIR.findall(pairs)),
        to_host=attributes.get("is_host_transfer") == "true",
    )


def name_of(text: str) -> str:
    """Name of an instruction by its text, which may be cut after that.

    Examples
    --------
    >>> name_of("ROOT %ag.1 = f32[8] all-gather(f32[2] %x)")
    'ag.1'
    """
    return text.split(" = ", 1)[0].strip().removeprefix("ROOT ").lstrip("%")


def parse_shape(text: str) -> Shape:
    """Read a shape.

    Raises
    ------
    HloError
        If the text does not begin with a shape.

    Examples
    --------
    >>> parse_shape("(bf16[2,<=8]{1,0:T(8,128)S(1)}, s4[3])").num_bytes
    34
    """
    return _shape(text, 0)[0]


def parse_groups(text: str) -> Groups:
    """Read replica groups in any of their forms: lists, iota, mesh axes.

    Raises
    ------
    HloError
        If the text is none of them.

    Examples
    --------
    >>> parse_groups("{{0,1},{2,3}}")
    ((0, 1), (2, 3))
    >>> parse_groups("mesh['x'=2,'y'=2] {'y'}")
    ((0, 1), (2, 3))
    """
    text = text.strip()
    if text.startswith("{"):
        compact = text.replace(" ", "")
        if compact == "{}":
            return ()
        if not re.fullmatch(r"\{\{\d*(?:,\d+)*\}(?:,\{\d*(?:,\d+)*\})*\}", compact):
            raise HloError(f"no replica groups: {_short(text)}")
        return tuple(
            tuple(int(i) for i in row.split(",")) if row else ()
            for row in compact[2:-2].split("},{")
        )
    if text.startswith("["):
        match = _IOTA.fullmatch(text)
        shape = _ints(match[1]) if match else ()
        if match is None or match[2] is None or len(shape) != 2:
            raise HloError(f"no replica groups: {_short(text)}")
        return iota_groups(shape[0], shape[1], _ints(match[2]), _ints(match[3] or ""))
    if match := _MESH.fullmatch(text):
        return mesh_groups(_mesh(match[1], match[2] or "", match[3]))
    raise HloError(f"no replica groups: {_short(text)}")


def _mesh(axes_text: str, devices: str, refs_text: str) -> MeshAxes:
    axes: dict[str, int] = {}
    for part in axes_text.split(","):
        match = _MESH_AXIS.match(part)
        if match is None or match[1] in axes:
            raise HloError(f"no mesh: {_short(axes_text)}")
        axes[match[1]] = int(match[2])
    names = list(axes)
    refs = []
    for part in refs_text.split(","):
        match = _AXIS_REF.match(part)
        if match is None or match[1] not in axes:
            raise HloError(f"no axes of the mesh: {_short(refs_text)}")
        refs.append((names.index(match[1]), int(match[2] or 1), int(match[3] or 0)))
    sizes = tuple(axes.values())
    order: tuple[int, ...] = ()
    if match := _IOTA.fullmatch(devices.strip()):
        count = 1
        for size in sizes:
            count *= size
        order = iota_devices(count, _ints(match[2] or match[1]), _ints(match[3] or ""))
    elif devices:
        order = _ints(devices.replace(" ", ""))
    return MeshAxes(sizes, tuple(refs), order)


def _head(text: str) -> tuple[str, Shape, str, int]:
    """Name, result, opcode, and where the operands begin."""
    match = _NAME.match(text)
    if match is None:
        raise HloError(f"no HLO: {_short(text)}")
    shape, at = _shape(text, match.end())
    opcode = _OPCODE.match(text, at)
    if opcode is None:
        raise HloError(f"no opcode where one is due: {_short(text[at:])}")
    return match[1], shape, opcode[1], opcode.end()


def _shape(text: str, at: int, depth: int = 0) -> tuple[Shape, int]:
    """Read the shape that begins at a place, and where it ends."""
    while at < len(text) and text[at] == " ":
        at += 1
    if text.startswith("/*", at):
        at = text.find("*/", at) + 2 or len(text)
        return _shape(text, at, depth)
    if depth > _DEEPEST:
        raise HloError("a shape nested too deeply")
    if text.startswith(("(", "b("), at):
        parts: list[Shape] = []
        at = text.index("(", at) + 1
        while True:
            while at < len(text) and text[at] in " ,":
                at += 1
            if at >= len(text):
                raise HloError("the text is cut off inside a shape")
            if text[at] == ")":
                return Shape("tuple", parts=tuple(parts)), at + 1
            part, at = _shape(text, at, depth + 1)
            parts.append(part)
    match = _DTYPE.match(text, at)
    if match is None:
        raise HloError(f"no shape where one is due: {_short(text[at:])}")
    try:
        dims = tuple(int(d.strip().removeprefix("<=")) for d in match[2].split(",") if d.strip())
    except ValueError as error:
        raise HloError(f"no dimensions: {_short(match[2])}") from error
    at, space = match.end(), 0
    if text.startswith("{", at):
        end = _matching(text, at)
        if found := _SPACE.search(text, at, end):
            space = int(found[1])
        at = end + 1
    return Shape(match[1], dims, space=space), at


_DEEPEST = 50


def _optional_shape(text: str) -> tuple[Shape | None, int]:
    if not _DTYPE.match(text) and not text.lstrip().startswith(("(", "/*", "b(")):
        return None, 0
    try:
        return _shape(text, 0)
    except HloError:
        return None, 0


def _matching(text: str, at: int) -> int:
    """Where the bracket at a place is closed."""
    depth, quoted = 0, False
    for i in range(at, len(text)):
        char = text[i]
        if char == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return i
    raise HloError("the text is cut off")


def _split(text: str) -> list[str]:
    """Parts between commas that no bracket encloses."""
    parts, depth, quoted, begin = [], 0, False, 0
    for i, char in enumerate(text):
        if char == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    if depth or quoted:
        raise HloError("the text is cut off")
    last = text[begin:]
    return [*parts, last] if last.strip() else parts


def _attribute(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise HloError(f"the text is cut off in {_short(text)}")
    return key.strip(), value.strip()


def _ints(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(i) for i in text.split(",") if i)
    except ValueError as error:
        raise HloError(f"no numbers: {_short(text)}") from error


def _short(text: str) -> str:
    return repr(text[:60])
