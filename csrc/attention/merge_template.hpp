#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Reads memory into registers, in four chains so that no addition waits for another.
template <typename S>
void read(const std::byte* at, std::size_t size) {
  using Vec = typename S::Vec;
  constexpr std::size_t kVec = S::kWidth * sizeof(float);
  Vec sums[4] = {S::zero(), S::zero(), S::zero(), S::zero()};
  std::size_t i = 0;
  for (; i + 4 * kVec <= size; i += 4 * kVec) {
    for (std::size_t c = 0; c < 4; ++c)
      sums[c] = S::add(sums[c], S::load(reinterpret_cast<const float*>(at + i + c * kVec)));
  }
  for (; i + kVec <= size; i += kVec)
    sums[0] = S::add(sums[0], S::load(reinterpret_cast<const float*>(at + i)));
  // The compiler must believe that somebody looks at the sum.
  const Vec sum = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
  asm volatile("" : : "r"(&sum) : "memory");
}

// Joins the partials of a request's ranges, always in the order of its tokens.
template <typename S, typename E>
class MergeKernel {
  using Vec = typename S::Vec;

public:
  static void merge(const MergeTask& task) {
    for (int head = task.first; head < task.last; ++head) one_head(task, head);
  }

private:
  static void one_head(const MergeTask& task, int head) {
    const int dim = task.shape.head_dim;
    const std::size_t heads = static_cast<std::size_t>(task.shape.heads);
    const Partial* partial = task.partials + head;
    float max = -std::numeric_limits<float>::infinity();
    for (int r = 0; r < task.ranges; ++r) max = std::max(max, partial[r * heads].max);
    float sum = 0;
    alignas(64) float row[kMaxHeadDim] = {};
    for (int r = 0; r < task.ranges; ++r) {
      const float weight = std::exp(partial[r * heads].max - max);
      sum += weight * partial[r * heads].sum;
      const float* from = task.rows + (r * heads + head) * padded(dim);
      for (int d = 0; d < dim; d += S::kWidth) {
        S::store(row + d, S::fma(S::set1(weight), S::load(from + d), S::load(row + d)));
      }
    }
    const float normal = task.ranges > 0 ? 1.0f / sum : 0.0f;
    for (int d = 0; d < dim; d += S::kWidth) S::store(row + d, S::mul(S::set1(normal), S::load(row + d)));
    const std::size_t at = static_cast<std::size_t>(head) * dim;
    if (task.out != nullptr) narrow_row(row, dim, reinterpret_cast<E*>(task.out) + at);
    if (task.out_f32 != nullptr) std::copy_n(row, dim, task.out_f32 + at);
    if (task.lse != nullptr) task.lse[head] = max + std::log(sum);
  }

  static void narrow_row(const float* from, int dim, E* to) {
    int d = 0;
    for (; d + S::kWidth <= dim; d += S::kWidth) S::narrow(to + d, S::load(from + d));
    if constexpr (S::kWidth > 8) {
      if (d < dim) S::narrow_half(to + d, S::load(from + d));
    }
  }
};

}  // namespace
}  // namespace lamina::attention
