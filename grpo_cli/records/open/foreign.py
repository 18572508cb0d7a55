"""Recognises files that are no JSON, by their first bytes or name, and says how to convert them."""

from __future__ import annotations

import re
import shlex

_RECORDS_INSTEAD = "give the records instead"
_JSONL = "write each record as a line, with json.dumps"
_TAR_AT = 257
LOOKED_AT = 265
"""Bytes from the beginning that identify the format."""
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")

_ZIP, _PICKLE = b"PK\x03\x04", re.compile(rb"\x80[\x02-\x05]")
_COLUMNS = (b"PAR1", b"ARRO")
_YAML = re.compile(rb"(---(\s|$)|%YAML|- ?\w+: |[A-Za-z_][\w.]*:(\s|$))")
_CSV = re.compile(rb"[\w\"' .()/-]+([,;\t][\w\"' .()/-]+)+\r?$")


_PACKED = {b"BZh": "bzip2; to read it: bunzip2 -c", b"\xfd7zXZ": "xz; to read it: xz -dc"}
_BINARY = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"SQLite format 3\0": "a SQLite database",
    b"\x7fELF": "a program",
}
_NAMED = {
    ".parquet": "Parquet's PAR1",
    ".arrow": "Arrow's ARROW1",
    ".feather": "Arrow's ARROW1",
    ".npz": "zip's PK (an npz file is a zip archive)",
    ".pt": "zip's PK (torch.save writes a zip archive)",
    ".pth": "zip's PK (torch.save writes a zip archive)",
    ".zip": "zip's PK",
    ".gz": "gzip's 1F 8B",
    ".zst": "zstd's 28 B5 2F FD",
    ".bz2": "bzip2's BZh",
    ".xz": "xz's FD 7zXZ",
}
"""How files begin whose names end so."""


def foreign(head: bytes, name: str = "") -> str | None:
    """Why a file that begins so cannot be read; None where it may be JSON."""
    if head.startswith(_COLUMNS):
        return "Parquet, Arrow and npz are read from files, not from pipes"
    if head.startswith(_ZIP):
        return (
            "this is a zip archive: unzip it and read the files in it; npz and torch.save files "
            "are read from disk, not from pipes"
        )
    if _PICKLE.match(head):
        return (
            "this is a Python pickle, which can run any code when it is loaded: load it where "
            f"you trust it, and {_JSONL}"
        )
    if head[_TAR_AT:].startswith(b"ustar"):
        return "this is a tar archive; to read the files in it: tar -xOf FILE | grpo eval"
    for magic, advice in _PACKED.items():
        if head.startswith(magic):
            return f"this is {advice} FILE | grpo eval"
    if head.startswith(b"\x93NUMPY"):
        return "this is a single numpy array without a name: save named arrays with np.savez"
    binary = next((kind for magic, kind in _BINARY.items() if head.startswith(magic)), None)
    if binary is not None:
        return f"this is {binary}, not text: {_RECORDS_INSTEAD}"
    ending = name[name.rfind(".") :].lower()
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if ending in _NAMED and start not in (b"", b"{", b"["):
        return f"is named {ending} but does not start with {_NAMED[ending]}"
    if ending == ".py":
        return "this is a Python program: run it, and give the file that it writes"
    if b"\0" in head and start not in (b"{", b"[") and not head.startswith(UTF16_BOMS):
        return f"this is binary data of an unknown kind, not text: {_RECORDS_INSTEAD}"
    return _text(head, name)


def log_advice(source: str) -> str:
    """A sentence on what a log is, and the commands that read it."""
    if not source:  # of data in memory
        return (
            'this is a trainer\'s log, which has no tokens: save it, as "log.csv", and call '
            'trend("log.csv"), or trend(records, log="log.csv")'
        )
    file = "FILE" if source in ("-", "<stdin>") else shlex.quote(source)
    return (
        f"this is a trainer's log, which has no tokens: grpo trend {file} shows its series, and "
        f"grpo trend RUN --log {file} compares it with the records"
    )


def _text(head: bytes, name: str) -> str | None:
    line = head.lstrip().partition(b"\n")[0].rstrip()
    if not line or line[:1] in b'{["' or b"\0" in line:
        return None
    if line.lower().startswith((b"<!doctype html", b"<html")):
        return f"this is an HTML page, which a browser opens: {_RECORDS_INSTEAD}"
    if _YAML.match(line):
        return (
            "this looks like YAML, but records are JSON; to convert it: yq -o json -I 0 FILE "
            "| grpo eval"
        )
    if _CSV.match(line) and not line[:1].isdigit():
        if b"step" in re.split(rb"\W", line.lower()):
            return log_advice(name)
        return (
            "this looks like CSV, but records are JSON, with a list of token log-probs for each "
            f"response: {_JSONL}"
        )
    return None
