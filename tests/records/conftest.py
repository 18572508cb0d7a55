"""A store in memory that fails as it is told, in the place of fsspec's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from grpo_cli.records.open import remote


class Store:
    """What fsspec's file systems have, as far as they are asked.

    Attributes:
        kept: a file's name → its bytes.
        stamps: what tells its versions apart, else 1.
        asked: the ranges that were asked for.
        faults: the errors of the next calls, one each; None: that call goes well.
        ranges: whether it knows ranges; else it sends all.
        short: how many bytes are missing from each answer.
        before: called before bytes are sent.
        opened: the files that were written.
    """

    def __init__(self):
        self.kept, self.stamps, self.listed = {}, {}, {}
        self.asked, self.faults, self.opened = [], [], []
        self.ranges, self.short, self.listings, self.before = True, 0, False, lambda: None
        self.transaction = SimpleNamespace(files=[])

    def put(self, name, data):
        self.kept[name] = data
        self.stamps[name] = self.stamps.get(name, 0) + 1
        return f"s3://{name}"

    def fail(self):
        error = self.faults.pop(0) if self.faults else None
        if error is not None:
            raise error

    def cat_file(self, place, start, end):
        self.asked.append((start, end))
        self.before()
        self.fail()
        data = self.kept[place][start:end] if self.ranges else self.kept[place]
        return data[: len(data) - self.short]

    def info(self, place):
        self.fail()
        if place not in self.kept:
            raise FileNotFoundError(place)
        now = {"type": "file", "size": len(self.kept[place]), "ETag": self.stamps[place]}
        return self.listed.setdefault(place, now) if self.listings else now

    def isfile(self, place):
        self.fail()
        return place in self.kept

    def isdir(self, place):
        self.fail()
        return any(name.startswith(f"{place}/") for name in self.kept)

    exists = isdir

    def find(self, place, detail):
        self.fail()
        assert detail
        found = {name: self.info(name) for name in self.kept if name.startswith(f"{place}/")}
        return {f"{place}/z": {"type": "directory", "size": 0}, **found}

    def glob(self, place, detail):
        return {f"{place}=": self.info(next(iter(self.kept)))} if detail else None

    def ls(self, place, detail):
        self.fail()
        if not self.isdir(place):
            raise FileNotFoundError(place)
        return [{"name": name, **about} for name, about in self.find(place, detail).items()]

    def rm_file(self, place):
        self.fail()
        if self.kept.pop(place, None) is None:
            raise FileNotFoundError(place)

    def unstrip_protocol(self, name):
        return f"s3://{name}"

    def open(self, place, mode, autocommit):
        self.fail()
        assert mode == "wb"
        self.opened.append(Written(self, place, autocommit))
        self.transaction.files.append(self.opened[-1])
        return self.opened[-1]


class Written:
    """A file that is written: it is there when it is committed, as an upload in parts is."""

    def __init__(self, store, place, autocommit):
        self.store, self.place, self.autocommit = store, place, autocommit
        self.data, self.closed = b"", False
        self.committed, self.discarded = False, False

    def write(self, data):
        self.store.fail()
        self.data += data

    def close(self):
        self.store.fail()
        self.closed = True
        if self.autocommit:
            self.commit()

    def commit(self):
        assert self.closed > self.committed
        self.committed = True
        self.store.put(self.place, self.data)

    def discard(self):
        self.discarded = True
        raise OSError("it cannot be given up")


@pytest.fixture
def store(monkeypatch):
    made, fake, core = Store(), ModuleType("fsspec"), ModuleType("fsspec.core")

    def url_to_fs(url, use_listings_cache):
        scheme, _, place = url.partition("://")
        if scheme == "gs":
            raise ImportError("Please install gcsfs")
        if scheme == "nosuch":
            raise ValueError("Protocol not known: nosuch")
        made.listings = use_listings_cache  # an old listing hides that a file changed
        return made, place.rstrip("/")

    fake.core, core.url_to_fs = core, url_to_fs
    monkeypatch.setitem(sys.modules, "fsspec", fake)
    monkeypatch.setattr(remote, "_pause", lambda seconds: None)
    return made
