#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "sim/arrivals.hpp"

namespace lamina::sim {

// The earliest of many moments, each of which may change: a tree of the earlier ones.
class Earliest {
public:
  explicit Earliest(int count)
      : first_(std::bit_ceil(static_cast<std::size_t>(count))), at_(2 * first_, kNever) {}

  void set(int i, Ticks at) {
    std::size_t node = first_ + static_cast<std::size_t>(i);
    at_[node] = at;
    for (node /= 2; node > 0; node /= 2) at_[node] = std::min(at_[2 * node], at_[2 * node + 1]);
  }
  Ticks at() const { return at_[1]; }
  int index() const {
    std::size_t node = 1;
    while (node < first_) node = 2 * node + (at_[2 * node] == at_[1] ? 0 : 1);
    return static_cast<int>(node - first_);
  }

private:
  std::size_t first_;
  std::vector<Ticks> at_;
};

}  // namespace lamina::sim
