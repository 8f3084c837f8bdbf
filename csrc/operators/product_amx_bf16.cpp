#if defined(__x86_64__)

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "attention/target_region.hpp"
#include "operators/product.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

#include "attention/tiles.hpp"

namespace lamina::operators {

namespace {

using attention::WholeTiles;

constexpr std::size_t kTile = 512;  // numbers of one
constexpr std::size_t kHalf = kTile / 2;
constexpr int kLine = 64;  // bytes

// What is read next, fetched into the second-level cache a few lines at a time. Many at once would take all
// places for misses, of which the tiles of x need some.
struct Ahead {
  const char* at;
  const char* end;
  [[gnu::always_inline]] void fetch(int lines) {
    for (int i = 0; i < lines && at < end; ++i, at += kLine) _mm_prefetch(at, _MM_HINT_T1);
  }
};

// The same of tiles that are multiplied two steps later, into the first level: half a tile of them.
[[gnu::always_inline]] inline void soon(const BFloat16* half) {
  for (int i = 0; i < 8; ++i) _mm_prefetch(reinterpret_cast<const char*>(half) + i * kLine, _MM_HINT_T0);
}

[[gnu::always_inline]] inline __m512 widened(const BFloat16* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 16 or 32 rows of x, from one on, times a panel.
template <int kTiles>
[[gnu::noinline]] void pass(const ProductTask& task, std::size_t panel, std::size_t row, Ahead& ahead,
                            int lines) {
  const Matrix& matrix = task.matrix;
  const BFloat16* weights = matrix.panels + panel * kPanel * matrix.inputs;
  const BFloat16* first = reinterpret_cast<const BFloat16*>(task.x) + row * matrix.inputs;
  const BFloat16* second = first + kTileRows * matrix.inputs;
  attention::stored();
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTiles > 1) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::size_t i = 0; i < matrix.inputs; i += 32, weights += 2 * kTile) {
    const BFloat16* tile = first + i / 32 * kTile;
    const BFloat16* below = second + i / 32 * kTile;
    const BFloat16* later = weights + 4 * kTile;
    _tile_loadd(4, tile, kLine);
    _tile_loadd(6, weights, kLine);
    ahead.fetch(lines);
    soon(later);
    soon(tile + 2 * kTile);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTile, kLine);
    ahead.fetch(lines);
    soon(later + kHalf);
    soon(tile + 2 * kTile + kHalf);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTiles > 1) _tile_loadd(5, below, kLine);
    ahead.fetch(lines);
    soon(later + 2 * kHalf);
    if constexpr (kTiles > 1) {
      soon(below + 2 * kTile);
      _tile_dpbf16ps(2, 5, 6);
    }
    ahead.fetch(lines);
    soon(later + 3 * kHalf);
    if constexpr (kTiles > 1) {
      soon(below + 2 * kTile + kHalf);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int kRow = kPanel * sizeof(float);
  alignas(kLine) float sums[kTiles * kTileRows][kPanel];
  _tile_stored(0, sums[0], kRow);
  _tile_stored(1, sums[0] + kTileRows, kRow);
  if constexpr (kTiles > 1) {
    _tile_stored(2, sums[kTileRows], kRow);
    _tile_stored(3, sums[kTileRows] + kTileRows, kRow);
  }
  attention::stored();
  __m512 bias[2] = {};
  if (matrix.bias != nullptr) {
    for (std::size_t half = 0; half < 2; ++half) {
      bias[half] = widened(matrix.bias + panel * kPanel + half * kTileRows);
    }
  }
  BFloat16* out = task.out + row * matrix.outputs + panel * kPanel;
  const std::size_t rows = std::min(kTiles * kTileRows, task.rows - row);
  for (std::size_t r = 0; r < rows; ++r, out += matrix.outputs) {
    const __m512 low = _mm512_add_ps(_mm512_load_ps(sums[r]), bias[0]);
    const __m512 high = _mm512_add_ps(_mm512_load_ps(sums[r] + kTileRows), bias[1]);
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

// For every 16 rows and 32 inputs a tile [16][32]; the last rows may be anything.
std::size_t bytes(std::size_t rows, std::size_t inputs) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows * inputs * sizeof(BFloat16);
}

void arrange(const BFloat16* x, std::size_t row, std::size_t inputs, std::byte* all) {
  const std::size_t row_bytes = inputs * sizeof(BFloat16);
  const auto* from = reinterpret_cast<const std::byte*>(x);
  std::byte* to = all + row / kTileRows * kTileRows * row_bytes + row % kTileRows * kLine;
  for (std::size_t at = 0; at < row_bytes; at += kLine) std::memcpy(to + at * kTileRows, from + at, kLine);
}

void panels(const ProductTask& task, std::size_t first, std::size_t last) {
  static constexpr WholeTiles kWhole;
  constexpr std::size_t kBoth = 2 * kTileRows;
  const std::size_t panel_numbers = kPanel * task.matrix.inputs;
  // A panel has 32 lines for every 32 inputs, and four times in these some are fetched.
  const auto lines = static_cast<int>((8 * kBoth + task.rows - 1) / task.rows);
  const int each = std::min(lines, 8);
  _tile_loadconfig(&kWhole);
  for (std::size_t panel = first; panel < last; ++panel) {
    const auto* next = reinterpret_cast<const char*>(task.matrix.panels + (panel + 1) * panel_numbers);
    Ahead ahead{next, panel + 1 < last ? next + panel_numbers * sizeof(BFloat16) : next};
    for (std::size_t row = 0; row < task.rows; row += kBoth) {
      if (task.rows - row > kTileRows) {
        pass<2>(task, panel, row, ahead, each);
      } else {
        pass<1>(task, panel, row, ahead, each);
      }
    }
  }
  _tile_release();
}

}  // namespace

const Product kAmxBf16Product{&bytes, &arrange, &panels};

}  // namespace lamina::operators

LAMINA_END_TARGET

#endif
