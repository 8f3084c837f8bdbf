#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// Several HBM devices and no LPDDR: their bandwidth together, no more chips than a board has, and
// communication between the devices four times a layer.
class MultiHbm final : public Policy {
public:
  MultiHbm(const Board& board, const Shape& shape)
      : board_(board), side_(board, all_of(board), board.hbm.chips + board.lpddr.chips, shape) {}

  std::optional<Plan> plan(const Moment& moment, const Room& room) const override {
    if (total_bytes(side_.shape(), room.unit) > capacity_bytes()) return std::nullopt;
    Plan plan = alone(board_, side_, true, moment);
    plan.launch_ns += kBarriers * board_.hbm_barrier_ns;
    return plan;
  }
  double capacity_bytes() const override { return all_of(board_).capacity_bytes; }
  bool maps() const override { return false; }

private:
  static constexpr int kBarriers = 4;  // of a layer

  static Side all_of(const Board& board) {
    Side side = board.hbm;
    side.capacity_bytes *= board.hbm_devices;
    side.bytes_per_ns *= board.hbm_devices;
    return side;
  }

  Board board_;
  Sublayers side_;
};

}  // namespace

std::unique_ptr<Policy> make_multi_hbm(const Board& board, const Shape& shape) {
  return std::make_unique<MultiHbm>(board, shape);
}

}  // namespace lamina::h2m2
