#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// The baseline: no HBM, and as many chips as the board has, all at the one LPDDR memory.
class LpddrOnly final : public Policy {
public:
  LpddrOnly(const Board& board, const Shape& shape)
      : board_(board), side_(board, board.lpddr, board.hbm.chips + board.lpddr.chips, shape) {}

  std::optional<Plan> plan(const Moment& moment, const Room& room) const override {
    if (total_bytes(side_.shape(), room.unit) > capacity_bytes()) return std::nullopt;
    return alone(board_, side_, false, moment);
  }
  double capacity_bytes() const override { return board_.lpddr.capacity_bytes; }
  bool maps() const override { return false; }

private:
  Board board_;
  Sublayers side_;
};

}  // namespace

std::unique_ptr<Policy> make_lpddr(const Board& board, const Shape& shape) {
  return std::make_unique<LpddrOnly>(board, shape);
}

}  // namespace lamina::h2m2
