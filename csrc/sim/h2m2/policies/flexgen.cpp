#include <cmath>
#include <cstdlib>

#include "sim/h2m2/packing.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// As near to FlexGen's shares as whole heads come.
class Nearest {
public:
  Nearest(const Shape& shape, Shares shares)
      : weights_(std::lround(shares.weights * shape.heads)), kv_(std::lround(shares.kv * shape.kv_heads)) {}

  int best(Sublayer sublayer) const {
    return static_cast<int>(sublayer == Sublayer::kAttention ? kv_ : weights_);
  }
  int of(Sublayer sublayer, int n) const { return std::abs(n - best(sublayer)); }

private:
  long weights_, kv_;
};

// Shares of weights and KV that were settled once and stay, whatever the batch and its lengths. What HBM then
// has no room for is taken from KV first.
class FlexGen final : public MappingPolicy {
public:
  FlexGen(const Board& board, const Shape& shape, bool translated, Shares shares)
      : MappingPolicy(board, shape, translated), wanted_(shape, shares) {}

protected:
  std::optional<Mapping> choose(const Moment&, const Room& room) const override {
    return Packing(times().shape(), room)
        .place({Sublayer::kQkv, Sublayer::kFc, Sublayer::kAttention}, wanted_);
  }

private:
  Nearest wanted_;
};

}  // namespace

std::unique_ptr<Policy> make_flexgen(const Board& board, const Shape& shape, bool translated, Shares shares) {
  return std::make_unique<FlexGen>(board, shape, translated, shares);
}

}  // namespace lamina::h2m2
