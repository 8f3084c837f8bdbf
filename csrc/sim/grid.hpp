#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lamina::sim {

// What was measured at the points of a rectangular grid. Between them it is linear along each axis; beyond
// them as at the edge.
class Grid {
public:
  Grid() = default;
  // Values in the order of the axes, the last of which changes fastest.
  Grid(std::vector<std::vector<double>> axes, std::vector<double> values)
      : axes_(std::move(axes)), values_(std::move(values)) {
    std::size_t points = 1;
    for (const std::vector<double>& axis : axes_) {
      if (axis.empty() || !std::ranges::is_sorted(axis, std::ranges::less_equal{}))
        throw std::invalid_argument("the points of a grid's axis ascend");
      points *= axis.size();
    }
    if (points != values_.size()) throw std::invalid_argument("a grid has a value for each of its points");
  }

  double at(std::span<const double> point) const { return along(0, 0, point); }
  std::span<const double> axis(std::size_t i) const { return axes_[i]; }

private:
  double along(std::size_t i, std::size_t row, std::span<const double> point) const {
    if (i == axes_.size()) return values_[row];
    const std::vector<double>& axis = axes_[i];
    const double x = std::clamp(point[i], axis.front(), axis.back());
    const auto above = static_cast<std::size_t>(std::ranges::upper_bound(axis, x) - axis.begin());
    const std::size_t below = above - 1;
    const double low = along(i + 1, row * axis.size() + below, point);
    if (x == axis[below]) return low;
    const double high = along(i + 1, row * axis.size() + above, point);
    return low + (high - low) * ((x - axis[below]) / (axis[above] - axis[below]));
  }

  std::vector<std::vector<double>> axes_;
  std::vector<double> values_;
};

}  // namespace lamina::sim
