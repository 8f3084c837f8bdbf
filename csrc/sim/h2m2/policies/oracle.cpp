#include "sim/h2m2/policies/policies.hpp"
#include "sim/h2m2/search.hpp"

namespace lamina::h2m2 {

namespace {

// The best mapping there is, by exact search.
class Oracle final : public MappingPolicy {
public:
  using MappingPolicy::MappingPolicy;

protected:
  std::optional<Mapping> choose(const Moment& moment, const Room& room) const override {
    return fastest(times(), moment, room, all_mappings(times().shape()));
  }
};

}  // namespace

std::unique_ptr<Policy> make_oracle(const Board& board, const Shape& shape, bool translated) {
  return std::make_unique<Oracle>(board, shape, translated);
}

}  // namespace lamina::h2m2
