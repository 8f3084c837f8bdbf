#include <algorithm>

#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// All chips at HBM, LPDDR behind it: what HBM has no room for comes over the link in every iteration. How
// much of the shorter of computing and moving hides behind the longer is a parameter of the board.
class Hierarchical final : public Policy {
public:
  Hierarchical(const Board& board, const Shape& shape)
      : board_(board), side_(board, board.hbm, board.hbm.chips + board.lpddr.chips, shape) {}

  std::optional<Plan> plan(const Moment& moment, const Room& room) const override {
    const double total = total_bytes(side_.shape(), room.unit);
    if (total > capacity_bytes()) return std::nullopt;
    Plan plan = alone(board_, side_, true, moment);
    const double computing = plan.iteration_ns(side_.shape().layers);
    const double lpddr = board_.lpddr.bytes_per_ns * board_.dram_efficiency;
    const double missing = std::max(0.0, total - board_.hbm.capacity_bytes);
    const double moving = missing / std::min(board_.link_bytes_per_ns, lpddr);
    plan.on_demand_ns = std::max(computing, moving) - computing +
                        (1 - board_.hierarchical_overlap) * std::min(computing, moving);
    plan.lpddr_busy_ns = moving;
    plan.lpddr_dram_ns = missing / lpddr;
    return plan;
  }
  double capacity_bytes() const override { return board_.hbm.capacity_bytes + board_.lpddr.capacity_bytes; }
  bool maps() const override { return false; }

private:
  Board board_;
  Sublayers side_;
};

}  // namespace

std::unique_ptr<Policy> make_hierarchical(const Board& board, const Shape& shape) {
  return std::make_unique<Hierarchical>(board, shape);
}

}  // namespace lamina::h2m2
