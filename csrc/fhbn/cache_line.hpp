#pragma once

#include <cstdint>

namespace lamina::fhbn {

// Seconds that a cache line takes from one core to another and back, the median of `rounds`: no message can
// be faster. std::system_error if this process may not use these cores.
double cache_line_round_trip_s(int first_cpu, int second_cpu, std::uint32_t rounds);

}  // namespace lamina::fhbn
