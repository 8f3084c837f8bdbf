#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "operators/sum.hpp"

namespace lamina::operators {
namespace {

// N has vectors that are no wider than torch's, which are added up in its order.
template <typename S, typename N, typename E>
class Norm {
  using Vec = typename S::Vec;

public:
  static void run(const NormTask& task, std::size_t first, std::size_t last) {
    switch (task.shape.lanes) {
      case 4:
        return rows<4>(task, first, last);
      case 8:
        return rows<8>(task, first, last);
      default:
        return rows<16>(task, first, last);
    }
  }

private:
  template <int kLanes>
  static void rows(const NormTask& task, std::size_t first, std::size_t last) {
    using Summing = std::conditional_t<kLanes >= S::kWidth, S, N>;
    // Callers that need narrower vectors use an instruction set that has them.
    if constexpr (kLanes >= Summing::kWidth) {
      using Sum = TorchSum<Summing, kLanes>;
      const NormShape& shape = task.shape;
      for (std::size_t row = first; row < last; ++row) {
        const E* x = as<E>(task.x.row(row));
        if (task.added != nullptr) x = added(task, row, x);
        E* out = as<E>(task.out) + row * shape.width;
        const auto value = [x](std::size_t at, auto memory) { return memory.widen(x + at); };
        if (shape.centred) {
          const float mean = Sum::of(shape.width, value) / static_cast<float>(shape.width);
          scaled<Sum>(task, out, [=](std::size_t at, auto memory) {
            using T = typename decltype(memory)::Simd;
            return T::sub(memory.widen(x + at), T::set1(mean));
          });
        } else {
          scaled<Sum>(task, out, value);
        }
      }
    }
  }

  static const E* added(const NormTask& task, std::size_t row, const E* x) {
    const std::size_t from = row * task.shape.width;
    const E* other = as<E>(task.added) + from;
    E* sum = as<E>(task.sum) + from;
    over<S>(task.shape.width, [=](std::size_t at, auto memory) {
      memory.narrow(sum + at, S::add(memory.widen(x + at), memory.widen(other + at)));
    });
    return sum;
  }

  // `value(at, memory)` divided by the root of its mean square, and weighted.
  template <typename Sum, typename F>
  static void scaled(const NormTask& task, E* out, F value) {
    const NormShape& shape = task.shape;
    const float squares = Sum::of(shape.width, [value](std::size_t at, auto memory) {
      const auto x = value(at, memory);
      return decltype(memory)::Simd::mul(x, x);
    });
    const float mean = squares / static_cast<float>(shape.width);
    const Vec scale = S::set1(1.0f / std::sqrt(mean + shape.eps));
    auto write = [&](auto weight) {
      over<S>(shape.width, [&](std::size_t at, auto memory) {
        Vec x = S::mul(value(at, memory), scale);
        if (shape.rounds_first) x = rounded<S, E>(x);
        memory.narrow(out + at, weight(at, memory, x));
      });
    };
    if (task.weight == nullptr) {
      write([](std::size_t, auto, Vec x) { return x; });
    } else if (shape.wide_weight) {
      write([w = as<float>(task.weight)](std::size_t at, auto memory, Vec x) {
        return S::mul(x, memory.widen(w + at));
      });
    } else {
      write([w = as<E>(task.weight)](std::size_t at, auto memory, Vec x) {
        return S::mul(x, memory.widen(w + at));
      });
    }
  }
};

}  // namespace
}  // namespace lamina::operators
