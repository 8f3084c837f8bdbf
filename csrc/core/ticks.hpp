#pragma once

#include <cstdint>

namespace lamina {

// Time in tenths of a nanosecond. Whole numbers, so that equal inputs give equal tables on every machine and
// a schedule that repeats is recognised by plain equality; 64 bits last for 29 years.
using Ticks = std::int64_t;

inline constexpr double kTicksPerSecond = 1e10;

}  // namespace lamina
