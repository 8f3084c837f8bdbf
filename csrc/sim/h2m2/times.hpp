#pragma once

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/sublayers.hpp"

namespace lamina::h2m2 {

// How long an iteration takes with both sides at work, each on its own heads.
class Times {
public:
  Times(const Board& board, const Shape& shape);

  // Throws std::invalid_argument if the mapping has more than there is. `translated` adds TLB misses.
  Plan of(const Mapping& mapping, const Moment& moment, bool translated) const;

  // A layer's sublayer, by heads (KV groups) on the HBM side: when the slower side is done. The LM head
  // without its exchange and launch.
  double ns(Sublayer sublayer, int heads, const Moment& moment) const;

  const Board& board() const { return board_; }
  const Shape& shape() const { return shape_; }
  const Sublayers& hbm() const { return hbm_; }
  const Sublayers& lpddr() const { return lpddr_; }

private:
  void add_exchange(Plan& plan, const Moment& moment) const;

  Board board_;
  Shape shape_;
  Sublayers hbm_, lpddr_;
};

// An iteration of which all is computed at one side, by whatever chips are there.
Plan alone(const Board& board, const Sublayers& side, bool at_hbm, const Moment& moment);

}  // namespace lamina::h2m2
