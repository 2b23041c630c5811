"""vectors.cuh and map.cuh in the simulator: which places go by vectors, wherever tensors begin, for every type."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest

import crucible
from crucible.sim import kernel as sim

pytestmark = pytest.mark.quick

KERNELS = Path(crucible.__file__).parent / "kernels"
SCALARS = {"float": 0, "double": 1, "half": 2, "bfloat16": 3}
WIDTHS = {"float": 4, "double": 2, "half": 8, "bfloat16": 8}
STORED = {"float": np.float32, "double": np.float64, "half": np.uint16, "bfloat16": np.uint16}

TEXT = r"""
#include "map.cuh"
using namespace crucible;

// Copies elements of three types, and counts how often each place was met, by vectors (low half) and alone.
struct Copy {
  const scalar* x;
  const int64_t* whole;
  const bool* flags;
  scalar* y;
  int64_t* whole_out;
  bool* flags_out;
  int* met;
  Index n;
  static constexpr bool in_vectors = true;
  __host__ __device__ Index count() const { return n; }
  __host__ __device__ Stretch places() const { return stretch(0, n, alike(x, whole, flags, y, whole_out, flags_out)); }
  __device__ void walk(const MapThreads& threads, const Stretch& run) const {
    for (Index k = threads.vector(); k < run.vectors; k += threads.turn()) {
      for (int d = 0; d < IN_FLIGHT; ++d) {
        const Index kk = k + d * MAP_THREADS, i = run.begin + kk * VECTOR;
        if (kk >= run.vectors) break;
        write_vector<true>(y + i, read_vector<true>(x + i));
        write_vector(whole_out + i, read_vector(whole + i));
        write_vector(flags_out + i, read_vector(flags + i));
        for (int u = 0; u < VECTOR; ++u) met[i + u] += 1;
      }
    }
    for (int64_t k = threads.first(); k < run.singles(); k += threads.step()) {
      const Index i = run.single(k);
      y[i] = x[i], whole_out[i] = whole[i], flags_out[i] = flags[i], met[i] += 1 << 16;
    }
  }
};

extern "C" int copy(const Copy* c, int n, int shift, int other) {
  const Copy moved{c->x + shift, c->whole + shift, c->flags + shift, c->y + other,
                   c->whole_out + shift, c->flags_out + shift, c->met, n};
  try {
    return launch_map(moved, nullptr);
  } catch (...) {
    return -1;
  }
}
extern "C" void places(int from, int to, int distance, int* out) {
  const Stretch s = stretch(from, to, distance);
  out[0] = s.begin, out[1] = s.vectors, out[2] = s.singles();
  for (int k = 0; k < s.singles(); ++k) out[3 + k] = s.single(k);
}
"""


@functools.cache
def library(scalar: str, vectors: int = 1, wide: int = 0) -> ctypes.CDLL:
    flags = {"SCALAR": SCALARS[scalar], "VECTORS": vectors, "WIDE": wide}
    text = "".join(f"#define CRUCIBLE_{name} {value}\n" for name, value in flags.items()) + TEXT
    return ctypes.CDLL(str(sim.Kernel(text, {}, include=[KERNELS]).path))


@pytest.fixture(autouse=True)
def fresh():
    sim.reset()
    yield
    sim.reset()


@pytest.mark.parametrize("scalar", SCALARS)
def test_every_place_once_and_vectors_where_they_may_begin(scalar):
    width = WIDTHS[scalar]
    out = (ctypes.c_int * 64)()
    for start in (0, 1, width, 13):
        for length in (0, 1, width - 1, width, width + 1, 3 * width + 1):
            for distance in (-1, *range(width)):
                library(scalar).places(start, start + length, distance, out)
                begin, vectors, singles = out[:3]
                met = [*out[3 : 3 + singles], *range(begin, begin + vectors * width)]
                assert sorted(met) == list(range(start, start + length))
                assert vectors == 0 or (begin + distance) % width == 0
                ahead = -(start + distance) % width
                assert vectors == (max(length - ahead, 0) // width if distance >= 0 else 0)


def copied(scalar, n, shift, other, vectors=1, wide=0):
    """Runs Copy on arrays that begin ``shift`` elements (one of them ``other``) after a multiple of 256 bytes."""
    rng = np.random.default_rng(n)
    x = rng.integers(1, 30000, n + 16).astype(STORED[scalar])
    whole, flags = rng.integers(-(2**40), 2**40, n + 16), rng.integers(0, 2, n + 16).astype(bool)
    given = [sim.DeviceArray.of(a) for a in (x, whole, flags)]
    made = [sim.DeviceArray.of(np.zeros_like(a)) for a in (x, whole, flags)]
    met = sim.DeviceArray.of(np.zeros(max(n, 1), np.int32))
    pointers = (ctypes.c_void_p * 8)(*(a.pointer for a in (*given, *made, met)))
    assert library(scalar, vectors, wide).copy(pointers, n, shift, other) == 0, sim.reports()
    outs = [a.numpy() for a in made]
    for k, (a, b) in enumerate(zip((x, whole, flags), outs)):
        to = other if k == 0 else shift
        np.testing.assert_array_equal(b[to : to + n], a[shift : shift + n])
        assert not b[:to].any() and not b[to + n :].any()
    return met.numpy()[:n]


@pytest.mark.parametrize("wide", (0, 1))
@pytest.mark.parametrize("scalar", SCALARS)
def test_copies_wherever_tensors_begin(scalar, wide):
    width = WIDTHS[scalar]
    for n in (1, width - 1, width, 5 * width + 3, 700 * width + 1):
        for shift in {0, 1, width - 1}:
            met = copied(scalar, n, shift, shift, wide=wide)
            ahead = -shift % width
            wanted = np.full(n, 1 << 16)
            wanted[ahead : ahead + max(n - ahead, 0) // width * width] = 1
            np.testing.assert_array_equal(met, wanted)
    # Tensors that begin differently, and the switch: element by element.
    assert (copied(scalar, 40, 0, 1) == 1 << 16).all()
    assert (copied(scalar, 40, 0, 0, vectors=0) == 1 << 16).all()
