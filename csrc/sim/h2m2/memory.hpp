#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/layout.hpp"
#include "sim/h2m2/pages.hpp"
#include "sim/h2m2/token_slots.hpp"

namespace lamina::h2m2 {

// The board's memory at work: weights and KV in logical pages, each on the side that the mapping says.
//
// Logical space has a region for each layer and sublayer. Weights lie in it head by head; a page that two
// heads share is on both sides where the boundary runs through it. KV lies batch-contiguous: for each layer
// and KV head, pages of token slots, K and V of a slot together; a request's tokens take the lowest free
// slots. So a column, the pages of the same slots over all layers and heads, is allocated and freed as a
// whole.
class Memory {
public:
  using Request = std::uint32_t;

  // What changed at one boundary between iterations, in pages.
  struct Traffic {
    std::int64_t allocated = 0;
    std::int64_t freed = 0;
    std::int64_t to_hbm = 0;
    std::int64_t to_lpddr = 0;

    std::int64_t moved() const { return to_hbm + to_lpddr; }
  };

  struct Occupancy {
    std::int64_t hbm_qkv = 0;  // pages
    std::int64_t hbm_kv = 0;
    std::int64_t hbm_fc = 0;
    std::int64_t lpddr = 0;
    std::int64_t wasted_bytes = 0;  // allocated and holding nothing, both sides
  };

  // Weights are placed by the first apply(). Throws std::invalid_argument for more columns than
  // most_columns().
  Memory(const Board& board, const Shape& shape, std::int64_t kv_columns);

  // Token slots of one column, and the most columns of which there is a feasible mapping however they are
  // split.
  static std::int64_t slots_of_column(const Board& board, const Shape& shape) {
    return Layout::slots_of_column(board, shape);
  }
  static std::int64_t most_columns(const Board& board, const Shape& shape) {
    return h2m2::most_columns(board, shape);
  }

  // The footprint tracker: requests come with tokens, have one more each, and go.
  void join(Request request, std::int64_t tokens) { slots_.join(request, tokens); }
  void grow() { slots_.grow(); }  // every request that is here, by one token
  void leave(Request request) { slots_.leave(request); }
  // Copies KV within each side where that empties columns; how many tokens.
  std::int64_t compact() { return slots_.compact(); }

  std::int64_t tokens() const { return slots_.tokens(); }
  std::int64_t rows() const { return slots_.rows(); }  // sum over requests of ceil(tokens / mv_rows)
  Room room() const;  // what a mapping has to fit, in whole pages; KV in whole columns

  // Allocates what is new straight where the mapping says, frees unused pages, and moves the rest.
  // Throws NoRoom, changing nothing, unless all that leaves at least one frame free. What fits room() always
  // does.
  Traffic apply(const Mapping& mapping);

  Occupancy occupancy() const;
  const Pages& pages() const { return pages_; }
  const TokenSlots& slots() const { return slots_; }
  const Layout& layout() const { return layout_; }

  // Throws std::logic_error naming the first thing found wrong: a page lost, owned twice, or on the wrong
  // side.
  void check_integrity() const;

private:
  friend struct MemoryTestAccess;  // the stress test breaks memories to see that check_integrity() notices

  // Both sides, either, or none.
  struct Sides {
    bool hbm = false;
    bool lpddr = false;

    bool operator==(const Sides&) const = default;
  };

  // What one boundary has to do, each for pages by side: those to give back, to bring from the other side, to
  // bring and leave there as well, and to allocate.
  struct Changes {
    std::array<std::vector<Pages::Page>, 2> freed, moved, copied, allocated;
  };

  static Sides sides_of(const Split& split, std::int64_t at);
  Sides sides_of_kv(const std::optional<Mapping>& mapping, int layer, int kv_head) const;

  void require_fits(const Mapping& mapping) const;
  void find_changes(const Mapping& mapping);
  void find_changes_of_weights(Pages::Page begin, std::int64_t pages, const std::optional<Split>& before,
                               const Split& after);
  void find_changes_of_column(std::int64_t column, const Mapping& mapping);
  void note(Pages::Page page, Sides before, Sides after);
  Traffic carry_out();

  void check_weights(Pages::Page begin, std::int64_t pages, const Split& split) const;
  void check_page(Pages::Page page, Sides expected) const;

  Layout layout_;
  Room room_of_column_;  // room() when one column is in use
  TokenSlots slots_;
  Pages pages_;
  std::optional<Mapping> mapping_;  // none before weights are placed
  std::vector<bool> placed_;        // of each column
  std::int64_t columns_placed_ = 0;
  Changes changes_;  // kept so that a boundary need not allocate memory
};

}  // namespace lamina::h2m2
