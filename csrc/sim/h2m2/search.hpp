#pragma once

#include <optional>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/times.hpp"

namespace lamina::h2m2 {

// Numbers on the HBM side that are to be considered, both ends included.
struct Range {
  int from = 0;
  int to = 0;
};

struct Ranges {
  Range qkv, attention, fc;
};

Ranges all_mappings(const Shape& shape);

// The mapping with the shortest iteration, exactly, or nothing if none fits. An iteration is a sum over
// sublayers: for each pair of the first two only the best of the third that still fits is of interest.
std::optional<Mapping> fastest(const Times& times, const Moment& moment, const Room& room,
                               const Ranges& ranges);

}  // namespace lamina::h2m2
