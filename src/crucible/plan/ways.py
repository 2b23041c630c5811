"""Ways to compute a contraction: what the cost model would take, what else could be tried, and choices among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from crucible.plan import tiles
from crucible.plan.boxes import WindowTile, choose_box, ranked_boxes, ranked_merged
from crucible.plan.forms import NO_POOL, Form
from crucible.plan.gradients import GradientTile, ranked_gradients
from crucible.plan.hopper import PairTile, ranked_pairs
from crucible.plan.hopper_gradients import GradientGroups, ranked_groups
from crucible.plan.narrower import with_narrower
from crucible.plan.tiles import PROCESSORS, MmaTile, Tile, few_lines, packing_pays

# A contraction with fewer tiles than this and a depth of at least DEEP is split along its depth.
FEW_TILES = 128
DEEP = 1024
TRIED = 4  # ways of one kind that are worth a measurement
KNOWN = 16  # ways of one kind that a choice may name


@dataclass(frozen=True)
class Site:
    """A contraction by all that its best way depends on, at the sizes of the Problem."""

    engine: str  # "mma" or "simt"
    rule: str  # "conv" or "matmul"
    rows: int
    cols: int
    depth: int
    batches: int
    form: Form | None = None  # of a window, where it is one
    extents: tuple[int, ...] = ()  # of the output
    channels: int = 0
    samples: int = 1  # that are not pixels
    direct: bool = False  # lines of the input are lines of memory
    pool: tuple[int, ...] = NO_POOL  # windows that are stored as one element each
    gradient: bool = False  # by the weight of a window
    phases: int = 1  # groups that read the same input
    beside: int = 1  # of these, neighbours whose elements lie beside each other
    groups: int = 1  # whose channels follow each other in memory

    @property
    def few(self) -> bool:
        """Whether it is a matrix product with few lines, which has a way of its own at run time."""
        return self.rule == "matmul" and few_lines(self.rows, self.cols, self.depth, self.batches)

    @property
    def text(self) -> str:
        """The same for the same shape class, and for no other."""
        sizes = f"{self.engine} {self.rule} {self.rows}x{self.cols}x{self.depth} batches {self.batches}"
        f = self.form
        if f is None:
            return sizes
        parts = {"kernel": f.kernel, "stride": f.stride, "dilation": f.dilation, "shift": f.shift, "of": self.extents}
        if prod(self.pool) > 1:
            parts["pool"] = self.pool
        if self.phases > 1:
            parts["phases"] = (self.phases, *[self.beside] * (self.beside > 1))
        if self.groups > 1:
            parts["groups"] = (self.groups,)
        listed = " ".join(f"{name} {_times(values)}" for name, values in parts.items())
        words = " flipped" * f.flipped + " direct" * self.direct + " gradient" * self.gradient
        return f"{sizes} channels {self.channels} samples {self.samples} {listed}{words}"


@dataclass(frozen=True)
class Way:
    """A tile and what goes with it."""

    tile: Tile | WindowTile | GradientTile
    splits: int = 1  # of the depth, at most
    packed: bool = False  # on Hopper, for its own instructions

    @property
    def label(self) -> str:
        t = self.tile
        if isinstance(t, GradientTile):
            text = f"gradient box {_times(t.box)}"
            text += f", on Hopper {_groups(t.groups)}" if t.groups is not None else ""
        elif isinstance(t, WindowTile):
            text = f"box {_times(t.box)}" + (f", on Hopper {_pair(t.pair)}" if t.pair is not None else "")
        else:
            text = f"{'mma' if isinstance(t, MmaTile) else 'simt'} tile {t.rows}x{t.cols}x{t.depth}"
        return text + (f", depth in {self.splits}" if self.splits > 1 else "") + ", packed" * self.packed


def _times(values: Iterable[int]) -> str:
    return "x".join(map(str, values))


def _pair(pair: PairTile) -> str:
    words = " in strips" if pair.landings else " made ready" if pair.ready else ""
    words += f" of {pair.merged} groups" if pair.merged > 1 else ""
    often = "twice" if pair.boxes == 2 else "three times"
    return f"{_times(pair.box)}{words}" + (f" {often} along {pair.join}" if pair.join >= 0 else "")


def _groups(g: GradientGroups) -> str:
    return f"{_times(g.box)} with {g.columns} channels by {g.groups} times {g.each} taps"


@dataclass(frozen=True)
class Choices:
    """Ways to prefer to the cost model's: the label of one for the text of a site. Empty: the cost model's alone."""

    picks: tuple[tuple[str, str], ...] = ()

    def label(self, site: Site) -> str | None:
        return dict(self.picks).get(site.text)

    def way(self, site: Site) -> Way | None:
        """What was chosen for a site; none where nothing was, or what is no way any more."""
        label = self.label(site)
        return _known(site).get(label) if label is not None else None

    def taking(self, site: str, label: str) -> Choices:
        """The same with another choice for one site."""
        return Choices(tuple(sorted({**dict(self.picks), site: label}.items())))


@lru_cache(256)
def best(site: Site) -> Way:
    """What should take the least time, by the cost model."""
    tile = _tiles(site)[0]
    splits = _splits(site, tile)
    if site.engine == "mma" and site.form is not None:
        if site.gradient:
            found = _gradients(site, site.form, tile)
            if found:
                return Way(found[0], _gradient_splits(site, found[0]))
        elif splits == 1:
            box = _box(site, site.form)
            if box is not None:
                return Way(box)
    return _plain(site, tile)


def ways(site: Site, hopper: bool, count: int = TRIED) -> list[Way]:
    """The cost model's choice, then what else may be worth a try on a chip with or without Hopper's instructions."""
    found = [best(site)]
    ranked = _tiles(site)
    if site.engine == "mma" and site.form is not None and site.gradient:
        gradients = _gradients(site, site.form, ranked[0])[:count]
        if hopper and gradients:
            sizes = (site.extents, site.rows, site.channels, site.batches)
            more = ranked_groups(site.form, *sizes)[:count]
            gradients += [replace(gradients[0], groups=g) for g in (*more, None)]
        found += [Way(g, _gradient_splits(site, g)) for g in gradients]
    elif site.engine == "mma" and site.form is not None:
        found += _windows(site, hopper, count)
    boxed = isinstance(found[0].tile, (WindowTile, GradientTile))
    for tile in ranked[: 1 if boxed else count]:
        plain = _plain(site, tile)
        found.append(plain)
        if plain.splits > 1:
            found.append(Way(tile))
        if hopper and site.rule == "matmul" and isinstance(tile, MmaTile):
            found += [Way(tile, packed=packed) for packed in (True, False) if plain.splits == 1]
    return list(dict.fromkeys(found))


def _windows(site: Site, hopper: bool, count: int) -> list[Way]:
    """Boxes of pixels: those of Hopper's kernel where it would run, with the best of each kind, else the others."""
    assert site.form is not None
    first = _box(site, site.form)
    if first is None:
        return []
    made = []
    merged = [] if first.pair is not None and first.pair.merged == 1 else _merged(site, site.form)
    if hopper and (first.pair is not None or merged):
        pairs = merged or ranked_pairs(
            site.form, site.extents, site.rows, site.channels, site.samples, direct=site.direct, pool=site.pool,
            phases=site.phases, beside=site.beside,
        )  # fmt: skip
        kinds: dict[tuple[int, ...], PairTile] = {}
        for pair in pairs:
            kind = (pair.join >= 0, pair.chunks > 0, pair.landings > 0, pair.ready, pair.boxes, pair.merged)
            kinds.setdefault(kind, pair)
        chosen = dict.fromkeys([*pairs[:count], *kinds.values()])
        sizes = (site.extents, site.rows, site.channels, site.samples)
        made += [replace(first, pair=with_narrower(site.form, pair, *sizes)) for pair in chosen]
        made.append(replace(first, pair=None))
    else:
        boxes = ranked_boxes(site.form, site.extents, site.rows, site.channels, site.pool)
        made += [replace(first, box=box) for box in boxes[:count]]
    return [Way(tile) for tile in made]


def _box(site: Site, form: Form) -> WindowTile | None:
    return choose_box(
        form, site.extents, site.rows, site.channels, site.samples, direct=site.direct, pool=site.pool,
        phases=site.phases, beside=site.beside, groups=site.groups,
    )  # fmt: skip


def _merged(site: Site, form: Form) -> list[PairTile]:
    """Several small groups taken for one, where a group alone is not for Hopper's kernels."""
    if prod(site.pool) > 1:
        return []
    found = ranked_merged(form, site.extents, site.rows, site.channels, site.groups, site.samples)
    return [pair for _, pair in found]


def _plain(site: Site, tile: Tile) -> Way:
    """A tile of the general contraction, split and packed as the cost model has it."""
    splits = _splits(site, tile)
    pays = packing_pays(tile, site.rows, site.cols, site.depth, site.batches)
    return Way(tile, splits, site.rule == "matmul" and splits == 1 and pays)


def _tiles(site: Site) -> Sequence[Tile]:
    grade = "tf32" if site.rule == "conv" else "fp32"
    return tiles.ranked(site.engine, "float32", grade, site.rows, site.cols, site.depth, site.batches)


def _splits(site: Site, tile: Tile) -> int:
    if site.few:
        return 1  # that way splits by itself, whatever the tile
    blocks = -(-site.rows // tile.rows) * -(-site.cols // tile.cols) * site.batches
    few = blocks < FEW_TILES and site.depth >= DEEP
    return min(-(-2 * FEW_TILES // blocks), site.depth // 256) if few else 1


def _gradients(site: Site, form: Form, other: Tile) -> list[GradientTile]:
    """Boxes for the gradient of a weight, the fastest first, with Hopper's instructions where these should pay."""
    found = ranked_gradients(form, site.extents, site.rows, site.channels, other)
    sizes = (site.extents, site.rows, site.channels, site.batches)
    groups = ranked_groups(form, *sizes)[:1] if found else []
    if not groups:
        return found
    cycles = found[0].cycles(form, site.extents) * _gradient_blocks(site, found[0]) / PROCESSORS
    pays = groups[0].cycles(form, *sizes) < cycles
    return [replace(tile, groups=groups[0]) for tile in found] if pays else found


def _gradient_blocks(site: Site, tile: GradientTile) -> int:
    return -(-site.rows // tile.rows) * -(-site.channels // tile.channels) * site.batches


def _gradient_splits(site: Site, tile: GradientTile) -> int:
    """Partial sums: two blocks for each processor, or one where these are as large as a processor on Hopper."""
    boxes = prod(-(-e // b) for e, b in zip(site.extents, tile.box))
    wanted = -(-2 * PROCESSORS // _gradient_blocks(site, tile))
    if tile.groups is not None and site.form is not None:
        kinds = tile.groups.kinds(site.form, site.rows, site.channels, site.batches)
        wanted = max(wanted, PROCESSORS // kinds)
    return min(wanted, boxes)


@lru_cache(64)
def _known(site: Site) -> dict[str, Way]:
    """Every way that a choice may name."""
    return {w.label: w for hopper in (False, True) for w in ways(site, hopper, KNOWN)}
