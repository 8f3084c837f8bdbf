#include <algorithm>
#include <cmath>

#include "sim/h2m2/packing.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// The paper's peak execution model: a head's operations at the units' peak rate, times what its arithmetic
// intensity costs. Operations are the same at both sides, so they are left out.
struct Balance {
  double hbm = 0;  // of a head at that side
  double lpddr = 0;
  int count = 0;

  double of(int n) const { return std::max(n * hbm, (count - n) * lpddr); }

  int best() const {
    const int n = static_cast<int>(count * lpddr / (hbm + lpddr));
    return n < count && of(n + 1) < of(n) ? n + 1 : n;
  }
};

class PeakModel {
public:
  PeakModel(const Times& times, const Moment& moment) {
    const Shape& shape = times.shape();
    const Board& board = times.board();
    const auto batch = static_cast<double>(moment.batch);
    // A weight is multiplied once for each request; the array stands still while it is loaded.
    const double waste = Chips::cycles_a_tile(board, batch) / batch;
    const double weight_intensity = batch / shape.element_bytes;
    const double kv_intensity = (board.reread_kv ? 1.0 : shape.group()) / shape.element_bytes;
    const auto weights = [&](const Chips& chips) {
      return std::max(waste / chips.mm_per_ns(), 1 / (chips.bytes_per_ns() * weight_intensity));
    };
    const auto kv = [&](const Chips& chips) {
      return std::max(1 / chips.mv_per_ns(), 1 / (chips.bytes_per_ns() * kv_intensity));
    };
    const Chips& hbm = times.hbm().chips();
    const Chips& lpddr = times.lpddr().chips();
    weights_ = {weights(hbm), weights(lpddr), shape.heads};
    attention_ = {kv(hbm), kv(lpddr), shape.kv_heads};
  }

  int best(Sublayer sublayer) const { return balance(sublayer).best(); }
  double of(Sublayer sublayer, int n) const { return balance(sublayer).of(n); }

private:
  const Balance& balance(Sublayer sublayer) const {
    return sublayer == Sublayer::kAttention ? attention_ : weights_;
  }

  Balance weights_, attention_;
};

// Algorithm 1: attention, qkv, fc, each balanced between the sides as well as there is room for.
class Greedy final : public MappingPolicy {
public:
  using MappingPolicy::MappingPolicy;

protected:
  std::optional<Mapping> choose(const Moment& moment, const Room& room) const override {
    return Packing(times().shape(), room)
        .place({Sublayer::kAttention, Sublayer::kQkv, Sublayer::kFc}, PeakModel(times(), moment));
  }
};

}  // namespace

std::unique_ptr<Policy> make_greedy(const Board& board, const Shape& shape, bool translated) {
  return std::make_unique<Greedy>(board, shape, translated);
}

}  // namespace lamina::h2m2
