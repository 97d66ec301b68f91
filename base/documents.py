"""Reading YAML and JSON strictly: what is given twice is refused, not overwritten."""

from __future__ import annotations

import json

import yaml


class DocumentError(ValueError):
    """What is wrong with a document, and the line where that is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = None if line is None else f"line {line}"


def quoted(value: object) -> str:
    """Write what a document holds, in a message, whatever its length."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-1]}"


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Build a mapping whose keys are all different."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            try:
                twice = key in seen
            except TypeError:
                raise DocumentError("a key that is no text or number", line) from None
            if twice:
                raise DocumentError(f"{quoted(key)} is given twice", line)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(content: str | bytes) -> object:
    """Read a YAML (or JSON) document.

    Parameters
    ----------
    content : str or bytes
        UTF-8.

    Returns
    -------
    object
        Of plain Python types.

    Raises
    ------
    DocumentError
        If it is no YAML, nested too deeply, has a key twice, or a value that cannot be read.
    """
    try:
        return yaml.load(content, Loader=_Loader)
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not text in UTF-8"
        raise DocumentError(f"not YAML: {problem}", mark.line + 1 if mark else None) from error
    except ValueError as error:  # a date that does not exist, a number of too many digits
        raise DocumentError(f"a value cannot be read: {error}") from error


def read_json(content: str | bytes) -> object:
    """Read a JSON document.

    Parameters
    ----------
    content : str or bytes
        UTF-8.

    Returns
    -------
    object
        Of plain Python types.

    Raises
    ------
    DocumentError
        If it is no JSON, nested too deeply, has a key twice, or a value that cannot be read.
    """
    try:
        return json.loads(content, object_pairs_hook=_unique)
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"not JSON: {error.msg}", error.lineno) from error
    except UnicodeDecodeError as error:
        raise DocumentError("not JSON: not text in UTF-8") from error
    except ValueError as error:  # a number of too many digits
        raise DocumentError(f"a value cannot be read: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError(f"{quoted(key)} is given twice")
        found[key] = value
    return found
