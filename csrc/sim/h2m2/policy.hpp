#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "sim/h2m2/board.hpp"

namespace lamina::h2m2 {

// How a board, or what it is compared with, runs an iteration: where everything is, and how long it takes.
class Policy {
public:
  using Plans = std::function<std::optional<Plan>(const Moment&, const Room&)>;

  Policy(double capacity_bytes, bool maps, Plans plans)
      : capacity_bytes_(capacity_bytes), maps_(maps), plans_(std::move(plans)) {}

  // Nothing, if there is no way to fit the footprint.
  std::optional<Plan> plan(const Moment& moment, const Room& room) const { return plans_(moment, room); }

  // Bytes there are for weights and KV, all memories together.
  double capacity_bytes() const { return capacity_bytes_; }

  // Whether heads or layers are mapped to two sides, so that memory is paged and data moves with the mapping.
  bool maps() const { return maps_; }

private:
  double capacity_bytes_;
  bool maps_;
  Plans plans_;
};

// FlexGen's static choice: the share of weights and of KV that is on the HBM side.
struct Shares {
  double weights = 0;
  double kv = 0;
};

// By name: greedy, oracle, flexgen, naive, q-major, a-major, f-major, lpddr, hierarchical, 8-hbm.
// `translated` adds the cost of TLB misses to those that map. Throws std::invalid_argument for a name it does
// not know.
std::unique_ptr<Policy> make_policy(const std::string& name, const Board& board, const Shape& shape,
                                    bool translated, Shares shares = {});

}  // namespace lamina::h2m2
