"""What is no JSON and can be told from how it begins: what it is, and how it becomes records."""

from __future__ import annotations

import re

_JSONL = "write each record as a line, with json.dumps"
_TAR_AT = 257
LOOKED_AT = 265
"""Bytes from the beginning that tell."""

_ZIP, _PICKLE = b"PK\x03\x04", re.compile(rb"\x80[\x02-\x05]")
_COLUMNS = (b"PAR1", b"ARRO")
_YAML = re.compile(rb"(---(\s|$)|%YAML|- ?\w+: |[A-Za-z_][\w.]*:(\s|$))")
_CSV = re.compile(rb"[\w\"' .()/-]+([,;\t][\w\"' .()/-]+)+\r?$")


def foreign(head: bytes) -> str | None:
    """Why a file that begins so cannot be read; None where it may be JSON."""
    if head.startswith(_COLUMNS):
        return "Parquet, Arrow and npz are read from files, not from pipes"
    if head.startswith(_ZIP):
        return (
            "this is a zip archive: unzip it, and read the files in it; npz, and what torch.save "
            "writes, are read from files, not from pipes"
        )
    if _PICKLE.match(head):
        return (
            "this is a Python pickle, which could run any code when it is read: load it where you "
            f"trust it, and {_JSONL}"
        )
    if head[_TAR_AT:].startswith(b"ustar"):
        return "this is a tar archive: tar -xOf FILE | grpo eval reads the files in it"
    return _text(head)


def _text(head: bytes) -> str | None:
    line = head.lstrip().partition(b"\n")[0].rstrip()
    if not line or line[:1] in b'{["' or b"\0" in line:
        return None
    if _YAML.match(line):
        return "this looks like YAML; records are JSON: yq -o json -I 0 FILE | grpo eval"
    if _CSV.match(line) and not line[:1].isdigit():
        return (
            "this looks like CSV, whose cells hold no lists; records are JSON, with the log-probs "
            f"of each response's tokens in a list: {_JSONL}"
        )
    return None
