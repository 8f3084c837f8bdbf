#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "operators/numbers.hpp"

namespace lamina::operators {
namespace {

// Numbers by their bits, as whole numbers in the same order: so compared, as many fit into a vector as can.
template <typename E>
class Choice {
  using Bits = std::conditional_t<std::is_same_v<E, float>, std::int32_t, std::int16_t>;
  static constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  static constexpr Bits kInfinity = std::is_same_v<E, float>      ? static_cast<Bits>(0x7f800000)
                                    : std::is_same_v<E, BFloat16> ? static_cast<Bits>(0x7f80)
                                                                  : static_cast<Bits>(0x7c00);

public:
  static void rows(const ChoiceTask& task, std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      const Bits* x = reinterpret_cast<const Bits*>(task.x) + row * task.width;
      task.out[row] = static_cast<std::int64_t>(chosen(x, task.width));
    }
  }

private:
  static std::size_t chosen(const Bits* x, std::size_t width) {
    Bits best = std::numeric_limits<Bits>::min(), largest = 0;
    for (std::size_t i = 0; i < width; ++i) {
      best = std::max(best, ordered(x[i]));
      largest = std::max(largest, magnitude(x[i]));
    }
    if (largest > kInfinity) {
      return find(x, width, [](Bits bits) { return magnitude(bits) > kInfinity; });
    }
    return find(x, width, [best](Bits bits) { return ordered(bits) == best; });
  }

  // Negative numbers grow with their bits' magnitude; both zeros are zero.
  static Bits ordered(Bits bits) { return bits < 0 ? static_cast<Bits>(-magnitude(bits)) : bits; }
  static Bits magnitude(Bits bits) { return static_cast<Bits>(bits & kMagnitude); }

  // The first that is so; there is one. Looked for in blocks, which a compiler makes vectors of.
  template <typename F>
  static std::size_t find(const Bits* x, std::size_t width, F so) {
    constexpr std::size_t kBlock = 256;
    std::size_t from = 0;
    for (; from + kBlock <= width; from += kBlock) {
      Bits any = 0;
      for (std::size_t i = 0; i < kBlock; ++i) any = std::max(any, static_cast<Bits>(so(x[from + i])));
      if (any != 0) break;
    }
    while (from + 1 < width && !so(x[from])) ++from;
    return from;
  }
};

}  // namespace
}  // namespace lamina::operators
