#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/slab.hpp"

namespace lamina::attention {

// Which of a request's tokens attention goes over.
enum class Tokens { kPrevious, kAll };  // without the newest one, whose K and V are yet to come, or with it

// A piece of one request's tokens: what one unit of work attends to.
struct Range {
  int request;
  const Slot* slots;
  int tokens;
  int row;  // where its partial results go; a request's ranges have consecutive rows
};

// The ranges of a batch, as layers with one window need them.
struct Ranges {
  int window;
  Tokens which;
  std::vector<Range> list;
  std::vector<int> first_row;  // [requests + 1]; each request has one row more than ranges, for its new token
};

// One iteration's batch: the slots of each request, taken once for all layers.
//
// Ranges end at multiples of a fixed number of tokens, so that a request's results depend on nothing but its
// own tokens: not on the rest of the batch, and not on how many threads there are.
class Plan {
public:
  explicit Plan(int range_tokens) : range_tokens_(range_tokens) {}

  // The requests' lists as they are now. The slab may change afterwards.
  void take(const Slab& slab, std::span<const RequestId> requests);

  // Lists given outright: request i has slots[offsets[i] .. offsets[i + 1]).
  void take(std::span<const std::int64_t> offsets, std::span<const Slot> slots);

  std::size_t requests() const noexcept { return lists_.size(); }
  // All slots are below this.
  std::int64_t slot_limit() const noexcept { return slot_limit_; }
  const Slab::View& list(std::size_t request) const { return lists_[request]; }

  // window 0: all tokens; else the last `window` of them.
  const Ranges& ranges(int window, Tokens which);

private:
  void adopt(std::vector<Slab::View> lists, std::int64_t slot_limit);

  int range_tokens_;
  std::vector<Slab::View> lists_;
  std::int64_t slot_limit_ = 0;
  std::vector<std::unique_ptr<Ranges>> ranges_;  // made when first asked for
};

}  // namespace lamina::attention
