#pragma once

#include <vector>

#include "sim/simulator.hpp"

namespace lamina::sim {

// What came of several deployments as one result: iterations in the order of their starts, those of the first
// deployment first where they are the same. Workers are numbered one deployment after the other; batches are
// already. The queue was empty when no request waited at the first of them. Requests are left out.
Result merged(std::vector<Result> parts);

}  // namespace lamina::sim
