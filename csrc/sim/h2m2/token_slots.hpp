#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/flat_map.hpp"

namespace lamina::h2m2 {

// Which token slots of the KV columns the requests hold: the paper's footprint tracker. The lowest free slots
// go out first, so that no more columns are ever in use than the most tokens held at once would fill.
//
// Every operation either happens completely or throws and changes nothing.
class TokenSlots {
public:
  using Request = std::uint32_t;
  using Slot = std::uint32_t;

  // A request's tokens fill rows of `row_tokens`, which is what matrix-vector units read at once.
  TokenSlots(std::int64_t columns, std::int64_t slots_of_column, std::int64_t row_tokens);

  void join(Request request, std::int64_t tokens);
  void grow();  // every request by one token, in the order of requests()
  void leave(Request request);

  // Copies tokens into lower free slots where that empties columns, so that no more are in use than the
  // tokens fill. Requests that left may have been spread over all of them. Returns how many tokens were
  // copied.
  std::int64_t compact();

  std::int64_t tokens() const { return tokens_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t free() const { return capacity_ - tokens_; }

  // In the order in which they grow: as they joined, but that the last one takes the place of one that left.
  std::vector<Request> requests() const;
  std::span<const Slot> slots(Request request) const;

  std::int64_t columns() const { return static_cast<std::int64_t>(live_.size()); }
  std::int64_t columns_in_use() const { return columns_in_use_; }
  std::int64_t live(std::int64_t column) const { return live_[static_cast<std::size_t>(column)]; }

  // Recounts everything and throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  friend struct MemoryTestAccess;  // the stress test breaks slots to see that check_integrity() notices

  struct Allocation {
    Request request;
    std::vector<Slot> slots;
  };

  std::int64_t rows_of(std::int64_t tokens) const { return (tokens + row_tokens_ - 1) / row_tokens_; }
  const Allocation& stored(Request request) const;
  void require_free(std::int64_t slots) const;
  Slot take_lowest();
  void count(const std::vector<Slot>& slots, std::int64_t change);

  std::int64_t capacity_, slots_of_column_, row_tokens_;
  std::vector<std::uint64_t> free_bits_;  // one a slot
  std::size_t lowest_word_ = 0;           // no word before it has a free slot
  std::vector<std::int64_t> live_;        // tokens of each column
  std::int64_t columns_in_use_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t rows_ = 0;
  std::vector<Allocation> stored_;
  FlatMap places_;  // request -> index into held_
};

}  // namespace lamina::h2m2
