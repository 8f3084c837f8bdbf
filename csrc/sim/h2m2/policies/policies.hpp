#pragma once

#include <memory>
#include <optional>

#include "sim/h2m2/load.hpp"
#include "sim/h2m2/policy.hpp"
#include "sim/h2m2/times.hpp"

namespace lamina::h2m2 {

// A policy that puts heads or layers on two sides. Each is in a file of its own; they decide as if addresses
// were translated for nothing.
class MappingPolicy : public Policy {
public:
  MappingPolicy(const Board& board, const Shape& shape, bool translated)
      : times_(board, shape), translated_(translated) {}

  std::optional<Plan> plan(const Moment& moment, const Room& room) const final {
    const std::optional<Mapping> mapping = choose(moment, room);
    if (!mapping) return std::nullopt;
    return times_.of(*mapping, moment, translated_);
  }
  double capacity_bytes() const final {
    return times_.board().hbm.capacity_bytes + times_.board().lpddr.capacity_bytes;
  }
  bool maps() const final { return true; }

protected:
  // Nothing, only if there is no mapping that fits the room.
  virtual std::optional<Mapping> choose(const Moment& moment, const Room& room) const = 0;

  const Times& times() const { return times_; }

private:
  Times times_;
  bool translated_;
};

// What X-major keeps as much of in HBM as there is room for.
enum class Major : std::uint8_t { kQkv, kAttention, kFc };

std::unique_ptr<Policy> make_greedy(const Board& board, const Shape& shape, bool translated);
std::unique_ptr<Policy> make_oracle(const Board& board, const Shape& shape, bool translated);
std::unique_ptr<Policy> make_flexgen(const Board& board, const Shape& shape, bool translated, Shares shares);
std::unique_ptr<Policy> make_naive(const Board& board, const Shape& shape, bool translated);
std::unique_ptr<Policy> make_major(const Board& board, const Shape& shape, bool translated, Major major);
std::unique_ptr<Policy> make_lpddr(const Board& board, const Shape& shape);
std::unique_ptr<Policy> make_hierarchical(const Board& board, const Shape& shape);
std::unique_ptr<Policy> make_multi_hbm(const Board& board, const Shape& shape);

}  // namespace lamina::h2m2
