#pragma once

#include <memory>
#include <optional>
#include <string>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/load.hpp"
#include "sim/h2m2/plan.hpp"

namespace lamina::h2m2 {

// How a board, or what it is compared with, runs an iteration: where everything is, and how long it takes.
class Policy {
public:
  virtual ~Policy() = default;

  // Nothing, if there is no way to fit the footprint.
  virtual std::optional<Plan> plan(const Moment& moment, const Room& room) const = 0;

  // Bytes there are for weights and KV, all memories together.
  virtual double capacity_bytes() const = 0;

  // Whether heads or layers are mapped to two sides, so that memory is paged and data moves with the mapping.
  virtual bool maps() const = 0;
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
