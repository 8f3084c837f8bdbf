"""A slice's graph reduced to a readable size: views become edges, elementwise chains one box."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from laminabench.conversion.products import is_size, short_name, weight_shape

if TYPE_CHECKING:
    from lamina.convert.describe import InstructionFacts, SavedFacts
    from laminabench.conversion.report import SliceReport

# Operators that characterise a chain least.
_PLAIN = frozenset({"to", "mul", "add", "getitem", "empty_like", "neg"})
# An exit of at least this share of a chain's widest value must be visible.
_WIDE = 0.25


@dataclass
class Box:
    """A node of the picture."""

    name: str
    kind: str  # "product", "lookup", "elementwise", "saved", "input", "receive", "send", "output"
    part: str  # "before", "query", "keyvalue", "rest", "logits" or "after"
    title: str
    detail: str = ""
    members: list[InstructionFacts] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)  # bytes of each value that crosses the cut

    @property
    def saved_bytes(self) -> str:
        each = f"{self.saved[0]:,} B"
        return each if len(self.saved) == 1 else f"{len(self.saved)} x {each}"


@dataclass(frozen=True)
class Edge:
    """An edge of the picture."""

    tail: str
    head: str
    kind: str  # "plain", "cut" or "moved"


@dataclass
class Folded:
    """Boxes and edges of the picture, and the number of hidden views."""

    boxes: dict[str, Box]
    edges: list[Edge]
    views: int


def fold(piece: SliceReport, saved_before: list[SavedFacts]) -> Folded:
    """Fold a slice's graph from a conversion's report; `saved_before` is the cut that it continues."""
    folder = _Folder(piece, saved_before)
    return Folded(folder.boxes, folder.edges(), folder.views)


class _Folder:
    def __init__(self, piece: SliceReport, saved_before: list[SavedFacts]) -> None:
        self.piece = piece
        self.boxes: dict[str, Box] = {}
        self.bytes: dict[str, int] = {}
        # For each value: its sources without views, its operator's inputs, and its box.
        self.through: dict[str, list[str]] = {}
        self.made_of: dict[str, list[str]] = {}
        self.home: dict[str, str] = {}
        self.views = 0
        self.uses: dict[str, list[str]] = {}
        self._inputs(saved_before)
        self._operators()
        self._chains()
        self._ends()

    def _inputs(self, saved_before: list[SavedFacts]) -> None:
        # A slice's inputs are in the order of the previous slice's outputs.
        context = [value for value in self.piece["inputs"] if value["name"] != "attended"]
        for value, saved in itertools.zip_longest(context, saved_before):
            box = Box(value["name"], "input", "before", value["name"], value["type"])
            if saved is not None and saved["bytes"]:  # else every worker has it: tokens and positions
                box.kind, box.title, box.saved = "saved", saved["made_by"], [saved["bytes"]]
            self._put(box, value["bytes"])
        for value in self.piece["inputs"]:
            if value["name"] == "attended":
                first = self.piece["parts"][0]["name"]
                self._put(Box("attended", "receive", first, "receive output"), value["bytes"])

    def _put(self, box: Box, width: int) -> None:
        self.boxes[box.name] = box
        self.bytes[box.name] = width
        self.through[box.name] = [box.name]
        self.home[box.name] = box.name

    def _operators(self) -> None:
        """Make a box for every operator that is not a view."""
        products = {one["result"]: one for part in self.piece["products"] for one in part["products"]}
        for part in self.piece["parts"]:
            for one in part["instructions"]:
                name = one["result"]
                inputs = (self.through.get(given, []) for given in one["inputs"])
                before = self.made_of[name] = list(dict.fromkeys(itertools.chain.from_iterable(inputs)))
                if is_size(one) or (not before and not one["weights"]):
                    self.through[name] = []  # depends on the batch size only
                    continue
                if one["kind"] == "view" or (one["op"] in {"getitem", "chunk"} and before):
                    self.views += 1
                    self.through[name] = before
                    continue
                matrix = any(len(weight_shape(weight["type"])) > 1 for weight in one["weights"])
                kind = "product" if one["kind"] == "product" else "lookup" if matrix else "elementwise"
                box = Box(name, kind, part["name"], one["op"], members=[one])
                if kind == "product":
                    box.title = products[name]["name"]
                    box.detail = " x ".join(f"{size:,}" for size in products[name]["shape"])
                elif kind == "lookup":
                    box.title = short_name(one["weights"][0]["name"])
                    box.detail = one["op"]
                self._put(box, one["bytes"])
                for value in before:
                    self.uses.setdefault(value, []).append(name)

    def _chains(self) -> None:
        """Merge chains of elementwise operators, as long as one wide value leaves each."""
        query = self.piece["parts"][0]["gives"][0]["bytes"]
        stream = self.bytes.get("attended", query)
        given = (each["name"] for part in self.piece["parts"] for each in part["gives"])
        leaving = {value for name in given for value in self.through[name]}
        order = list(self.boxes)
        needs = self._needs(order)
        taken: set[str] = set()
        for start, source in enumerate(order):
            chain: list[str] = []
            best: list[str] = []
            for name in order[start + 1 :]:
                box = self.boxes[name]
                elsewhere = chain and box.part != self.boxes[chain[0]].part
                if box.kind != "elementwise" or name in taken or elsewhere:
                    continue
                made_of = self.made_of[name]
                others = [value for value in made_of if value != source and value not in chain]
                # Small values (cos and sin, a router's choice) may join in, unless they come from the chain
                # itself; a second wide value joins two streams, which must stay visible.
                small = min(self.bytes[source], stream // 4)
                joins = all(self.bytes[v] <= small and not needs[v] & {*chain, name} for v in others)
                if not joins or len(others) == len(made_of):
                    continue
                chain.append(name)
                exits = [v for v in chain if v in leaving or not {*self.uses.get(v, [])} <= {*chain}]
                if sum(self.bytes[v] >= _WIDE * stream for v in exits) <= 1:
                    best = list(chain)
            for group in self._connected(best):
                taken.update(group)
                self._merge(group)
        for name, box in self.boxes.items():
            if box.kind == "elementwise" and name not in taken:
                self._merge([name])
        self.boxes = {name: box for name, box in self.boxes.items() if self.home[name] == name}

    def _needs(self, order: list[str]) -> dict[str, set[str]]:
        """Return all boxes that each box depends on."""
        needs: dict[str, set[str]] = {}
        for name in order:
            above = self.made_of.get(name, [])
            needs[name] = {*above, *(far for value in above for far in needs[value])}
        return needs

    def _connected(self, chain: list[str]) -> list[list[str]]:
        """Split chains into connected parts: two norms of one value are two chains."""
        groups: list[list[str]] = []
        for name in chain:
            near = [group for group in groups if any(value in group for value in self.made_of[name])]
            groups = [group for group in groups if group not in near] + [[*itertools.chain(*near), name]]
        return groups

    def _merge(self, group: list[str]) -> None:
        last = self.boxes[group[-1]]
        members = [self.boxes[name].members[0] for name in group]
        for name in group:
            self.home[name] = last.name
        last.members = members
        vectors = [short_name(weight["name"]) for one in members for weight in one["weights"]]
        ops = [one["op"] for one in members]
        listed = " ".join(_characteristic(ops))
        parents = {self.home[v] for name in group for v in self.made_of[name]} - {last.name}
        if {"cos", "sin"} <= set(ops):
            last.title = "cos, sin"
        elif vectors:
            last.title = vectors[-1]
        elif any(self.boxes[name].title in {"cos", "sin", "cos, sin"} for name in parents):
            last.title = "rotate"
        else:
            last.title = listed
        if len(ops) > 1:
            last.detail = f"{len(ops)} operators" + (f": {listed}" if last.title != listed else "")

    def _ends(self) -> None:
        self.sinks: dict[str, list[str]] = {}
        for part in self.piece["parts"]:
            name, given = part["name"], [value["name"] for value in part["gives"]]
            if name in {"query", "keyvalue"}:
                box = Box(f"send {name}", "send", name, "send q" if name == "query" else "send k, v")
                self.boxes[box.name] = box
                self.sinks[box.name] = given
            elif name == "logits":
                self.boxes["logits"] = Box("logits", "output", "after", "logits")
                self.sinks["logits"] = given
        for value in self.piece["cut"]:
            if value["bytes"]:
                box = Box(f"save {value['value']}", "saved", "after", value["made_by"], value["type"])
                box.saved = [value["bytes"]]
                self.boxes[box.name] = box
                self.sinks[box.name] = [value["value"]]
        self._join_equal()

    def _join_equal(self) -> None:
        """Merge saved values of one type between the same boxes, such as cos and sin."""
        equal: dict[tuple[object, ...], list[Box]] = {}
        joined: dict[str, str] = {}
        # From the top: merged boxes make the edges below them equal.
        for box in [box for box in self.boxes.values() if box.kind == "saved"]:
            if box.part == "before":
                ends = {self.home[user] for user in self.uses.get(box.name, [])}
                key = (box.detail, box.part, frozenset(ends))
            else:
                makers = {self.home[maker] for value in self.sinks[box.name] for maker in self.through[value]}
                key = (box.detail, box.part, frozenset(joined.get(maker, maker) for maker in makers))
            equal.setdefault(key, []).append(box)
            joined[box.name] = equal[key][0].name
        for first, *others in equal.values():
            first.title = ", ".join(box.title for box in (first, *others))
            first.saved = [width for box in (first, *others) for width in box.saved]
            for box in others:
                del self.boxes[box.name]
                self.home[box.name] = first.name
                self.sinks.pop(box.name, None)

    def edges(self) -> list[Edge]:
        """Return one edge for each two connected boxes."""
        home = self.home
        pairs = [(home[value], home[user]) for value, users in self.uses.items() for user in users]
        for sink, given in self.sinks.items():
            pairs += [(home[maker], sink) for value in given for maker in self.through[value]]
        distinct = [(tail, head) for tail, head in dict.fromkeys(pairs) if tail != head]
        return [Edge(tail, head, self._kind(tail, head)) for tail, head in distinct]

    def _kind(self, tail: str, head: str) -> str:
        first, last = self.boxes[tail].kind, self.boxes[head].kind
        if "saved" in (first, last):
            return "cut"
        return "moved" if first == "receive" or last == "send" else "plain"


def _characteristic(ops: list[str]) -> list[str]:
    """Return the operators to name: all if they are few, else the characteristic ones."""
    distinct = list(dict.fromkeys(ops))
    if len(distinct) > 4:
        distinct = [op for op in distinct if op not in _PLAIN] or distinct
    return distinct if len(distinct) <= 4 else [*distinct[:4], "…"]
