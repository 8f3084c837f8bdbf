#pragma once

#include <cstddef>
#include <cstring>

#include "operators/numbers.hpp"

namespace lamina::operators {
namespace {

// T is what cos and sin are stored as; kWide: only the sum is rounded.
template <typename S, typename E, typename T, bool kWide>
class Rotary {
  using Vec = typename S::Vec;

public:
  static void rows(const RotaryTask& task, std::size_t first, std::size_t last) {
    const RotaryShape& shape = task.shape;
    for (std::size_t row = first; row < last; ++row) {
      const T* cos = as<T>(task.cos + row * task.table_stride);
      const T* sin = as<T>(task.sin + row * task.table_stride);
      for (std::size_t head = 0; head < shape.heads; ++head) {
        const std::size_t number = row * shape.heads + head;
        const E* x = as<E>(task.x.row(number));
        E* out = as<E>(task.out) + number * shape.head_dim;
        if (shape.pairs) {
          pairs(shape.rotated, x, cos, sin, out);
        } else {
          const std::size_t half = shape.rotated / 2, second = shape.half_tables ? 0 : half;
          E sorted[kMostInterleaved];
          if (shape.interleaved) {
            for (std::size_t i = 0; i < shape.rotated; ++i) sorted[i / 2 + (i % 2) * half] = x[i];
          }
          halves(half, shape.interleaved ? sorted : x, {cos, cos + second}, {sin, sin + second}, out);
        }
        std::memcpy(out + shape.rotated, x + shape.rotated, (shape.head_dim - shape.rotated) * sizeof(E));
      }
    }
  }

private:
  static Vec product(Vec a, Vec b) { return kWide ? S::mul(a, b) : rounded<S, E>(S::mul(a, b)); }

  // A table's numbers for the first half and for the second.
  struct Table {
    const T* low;
    const T* high;
  };

  static void halves(std::size_t half, const E* x, Table cos, Table sin, E* out) {
    over<S>(half, [=](std::size_t at, auto memory) {
      const Vec low = memory.widen(x + at), high = memory.widen(x + half + at);
      const Vec left = product(low, memory.widen(cos.low + at));
      const Vec right = product(high, memory.widen(sin.low + at));
      memory.narrow(out + at, S::sub(left, right));
      const Vec up = product(high, memory.widen(cos.high + at));
      memory.narrow(out + half + at, S::add(up, product(low, memory.widen(sin.high + at))));
    });
  }

  static void pairs(std::size_t rotated, const E* x, const T* cos, const T* sin, E* out) {
    over<S>(rotated, [=](std::size_t at, auto memory) {
      const Vec here = memory.widen(x + at);
      float turned[S::kWidth];
      S::store(turned, here);
      for (int i = 0; i < S::kWidth; i += 2) {
        const float even = turned[i];
        turned[i] = -turned[i + 1];
        turned[i + 1] = even;
      }
      const Vec left = product(here, memory.widen(cos + at));
      memory.narrow(out + at, S::add(left, product(S::load(turned), memory.widen(sin + at))));
    });
  }
};

template <typename S, typename E>
void rotary(const RotaryTask& task, std::size_t first, std::size_t last) {
  if (task.shape.wide_tables) {
    Rotary<S, E, float, true>::rows(task, first, last);
  } else if (task.shape.wide) {
    Rotary<S, E, E, true>::rows(task, first, last);
  } else {
    Rotary<S, E, E, false>::rows(task, first, last);
  }
}

}  // namespace
}  // namespace lamina::operators
