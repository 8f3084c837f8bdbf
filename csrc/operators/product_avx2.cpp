#if defined(__x86_64__)

#include <cstddef>

#include "attention/target_region.hpp"
#include "operators/product.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c")

#include "attention/simd_avx2.hpp"

// For processors without products of bfloat16: weights are widened where they are multiplied, so that a
// product takes as long as one of floats and reads half as much.
namespace lamina::operators {

namespace {

using S = attention::Avx2Simd;

constexpr std::size_t kTile = 512;    // numbers of one
constexpr std::size_t kStep = 32;     // inputs of one
constexpr int kMostRows = 6;          // whose sums fit in the registers, of 16 outputs
constexpr std::size_t kFetch = 2048;  // bytes from a weight to what is fetched meanwhile

std::size_t bytes(std::size_t rows, std::size_t inputs) { return rows * inputs * sizeof(float); }

void arrange(const BFloat16* x, std::size_t row, std::size_t inputs, std::byte* all) {
  float* to = reinterpret_cast<float*>(all) + row * inputs;
  for (std::size_t i = 0; i < inputs; i += S::kWidth) S::store(to + i, S::widen(x + i));
}

// Of 8 outputs and a pair of inputs, which lie side by side, the weights of the first or of the second.
template <bool kSecond>
[[gnu::always_inline]] inline S::Vec half_of(const BFloat16* pairs) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
  return _mm256_castsi256_ps(kSecond ? _mm256_and_si256(both, _mm256_set1_epi32(-0x10000))
                                     : _mm256_slli_epi32(both, 16));
}

// R rows, from one on, by 16 or by all 32 of a panel's outputs: C vectors of sums for each row.
template <int R, int C>
[[gnu::noinline]] void pass(const ProductTask& task, std::size_t panel, std::size_t tile, std::size_t row) {
  const Matrix& matrix = task.matrix;
  const BFloat16* weights = matrix.panels + panel * kPanel * matrix.inputs + tile * kTile;
  const float* x = reinterpret_cast<const float*>(task.x) + row * matrix.inputs;
  S::Vec sums[R][C];
  for (auto& of_row : sums) {
    for (S::Vec& sum : of_row) sum = S::zero();
  }
  const auto add = [&]<bool kSecond>(const BFloat16* pairs, const float* at) {
    S::Vec weight[C];
    for (int c = 0; c < C; ++c) weight[c] = half_of<kSecond>(pairs + c / 2 * kTile + c % 2 * kTileRows);
    for (int r = 0; r < R; ++r) {
      const S::Vec number = S::set1(at[r * matrix.inputs]);
      for (int c = 0; c < C; ++c) sums[r][c] = S::fma(number, weight[c], sums[r][c]);
    }
  };
  for (std::size_t i = 0; i < matrix.inputs; i += kStep, weights += 2 * kTile) {
#pragma GCC unroll 2
    for (std::size_t pair = 0; pair < kStep / 2; ++pair, x += 2) {
      const BFloat16* pairs = weights + pair * kPanel;
      for (int c = 0; c < C; c += 2) {
        _mm_prefetch(reinterpret_cast<const char*>(pairs + c / 2 * kTile) + kFetch, _MM_HINT_T0);
      }
      add.template operator()<false>(pairs, x);
      add.template operator()<true>(pairs, x + 1);
    }
  }
  const std::size_t first = panel * kPanel + tile * kTileRows;
  for (int c = 0; c < C; ++c) {
    const std::size_t output = first + static_cast<std::size_t>(c) * S::kWidth;
    const S::Vec bias = matrix.bias == nullptr ? S::zero() : S::widen(matrix.bias + output);
    for (int r = 0; r < R; ++r) {
      S::narrow(task.out + (row + r) * matrix.outputs + output, S::add(sums[r][c], bias));
    }
  }
}

// The rows from one on by a panel, N of them if there are as many. One or two have sums enough to keep the
// processor busy with all outputs only.
template <int N>
void rows_by_panel(const ProductTask& task, std::size_t panel, std::size_t row) {
  if (task.rows - row < N) {
    if constexpr (N > 1) rows_by_panel<N - 1>(task, panel, row);
  } else if constexpr (N <= 2) {
    pass<N, 4>(task, panel, 0, row);
  } else {
    for (std::size_t tile = 0; tile < 2; ++tile) pass<N, 2>(task, panel, tile, row);
  }
}

void panels(const ProductTask& task, std::size_t first, std::size_t last) {
  for (std::size_t panel = first; panel < last; ++panel) {
    for (std::size_t row = 0; row < task.rows; row += kMostRows) rows_by_panel<kMostRows>(task, panel, row);
  }
}

}  // namespace

const Product kAvx2Product{&bytes, &arrange, &panels};

}  // namespace lamina::operators

LAMINA_END_TARGET

#endif
