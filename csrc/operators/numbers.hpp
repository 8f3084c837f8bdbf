#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "operators/kernels.hpp"

namespace lamina::operators {
namespace {

template <typename E>
const E* as(const std::byte* at) {
  return reinterpret_cast<const E*>(at);
}

template <typename E>
E* as(std::byte* at) {
  return reinterpret_cast<E*>(at);
}

// x as E holds it.
template <typename S, typename E>
typename S::Vec rounded(typename S::Vec x) {
  if constexpr (std::is_same_v<E, float>) {
    return x;
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    typedef std::uint32_t Bits __attribute__((vector_size(S::kWidth * 4)));
    const Bits bits = reinterpret_cast<Bits>(x);
    const Bits nearest = bits + 0x7fff + ((bits >> 16) & 1);
    // No NaN becomes infinity.
    const Bits rounded = (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : nearest;
    return reinterpret_cast<typename S::Vec>(rounded & 0xffff0000);
  } else {
    E rounded[S::kWidth];
    S::narrow(rounded, x);
    return S::widen(rounded);
  }
}

// A vector's numbers in memory.
template <typename S>
struct Whole {
  using Simd = S;
  template <typename E>
  typename S::Vec widen(const E* from) const {
    return S::widen(from);
  }
  template <typename E>
  void narrow(E* to, typename S::Vec x) const {
    S::narrow(to, x);
  }
};

// The first of them: nothing beyond these is read or written.
template <typename S>
struct Some {
  using Simd = S;
  std::size_t count;

  template <typename E>
  typename S::Vec widen(const E* from) const {
    E some[S::kWidth] = {};
    std::memcpy(some, from, count * sizeof(E));
    return S::widen(some);
  }
  template <typename E>
  void narrow(E* to, typename S::Vec x) const {
    E some[S::kWidth];
    S::narrow(some, x);
    std::memcpy(to, some, count * sizeof(E));
  }
};

// Calls `each(at, memory)` for all vectors of [0, width); the last one may be only some of one.
template <typename S, typename F>
void over(std::size_t width, F each) {
  std::size_t at = 0;
  for (; at + S::kWidth <= width; at += S::kWidth) each(at, Whole<S>{});
  if (at < width) each(at, Some<S>{width - at});
}

}  // namespace
}  // namespace lamina::operators
