#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policies/policies.hpp"
#include "sim/h2m2/search.hpp"

namespace lamina::h2m2 {

namespace {

// As much of one sublayer in HBM as fits there, and of the others the best by exact search.
class MajorOf final : public MappingPolicy {
public:
  MajorOf(const Board& board, const Shape& shape, bool translated, Major major)
      : MappingPolicy(board, shape, translated), major_(major) {}

protected:
  std::optional<Mapping> choose(const Moment& moment, const Room& room) const override {
    const Pieces pieces = pieces_of(room);
    // With less of it only where the others would fit nowhere.
    for (int n = pieces.most_in(room.hbm_bytes); n >= 0; --n) {
      Ranges ranges = all_mappings(times().shape());
      (major_ == Major::kQkv ? ranges.qkv : major_ == Major::kFc ? ranges.fc : ranges.attention) = {n, n};
      if (const auto found = fastest(times(), moment, room, ranges)) return found;
    }
    return std::nullopt;
  }

private:
  Pieces pieces_of(const Room& room) const {
    const Shape& shape = times().shape();
    if (major_ == Major::kAttention) return {room.unit.attention, shape.kv_heads};
    return {major_ == Major::kQkv ? room.unit.qkv : room.unit.fc, shape.heads};
  }

  Major major_;
};

}  // namespace

std::unique_ptr<Policy> make_major(const Board& board, const Shape& shape, bool translated, Major major) {
  return std::make_unique<MajorOf>(board, shape, translated, major);
}

}  // namespace lamina::h2m2
