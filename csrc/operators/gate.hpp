#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "operators/numbers.hpp"

namespace lamina::operators {
namespace {

template <typename S, typename E>
void gate(const GateTask& task, std::size_t first, std::size_t last) {
  // So far apart that nothing is read in the moment after it was written.
  constexpr std::size_t kBlock = 512;
  E active[kBlock];
  for (std::size_t row = first; row < last; ++row) {
    const E* gate = as<E>(task.gate.row(row));
    const E* up = as<E>(task.up.row(row));
    E* out = as<E>(task.out) + row * task.width;
    for (std::size_t from = 0; from < task.width; from += kBlock) {
      const std::size_t count = std::min(kBlock, task.width - from);
      for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t result = task.table[gate[from + i].bits];
        // One by one: compilers would make vectors of it, number by number, which takes three times as long.
        asm("" : "+r"(result));
        active[i].bits = static_cast<std::uint16_t>(result);
      }
      over<S>(count, [&](std::size_t at, auto memory) {
        memory.narrow(out + from + at, S::mul(memory.widen(active + at), memory.widen(up + from + at)));
      });
    }
  }
}

}  // namespace
}  // namespace lamina::operators
