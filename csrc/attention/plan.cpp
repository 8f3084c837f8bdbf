#include "attention/plan.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace lamina::attention {

void Plan::take(const Slab& slab, std::span<const RequestId> requests) {
  std::vector<Slab::View> lists;
  lists.reserve(requests.size());
  for (const RequestId request : requests) lists.push_back(slab.indices(request));
  adopt(std::move(lists), slab.capacity());
}

void Plan::take(std::span<const std::int64_t> offsets, std::span<const Slot> slots) {
  if (offsets.empty() || offsets.front() != 0 || !std::is_sorted(offsets.begin(), offsets.end()) ||
      offsets.back() != static_cast<std::int64_t>(slots.size())) {
    throw std::invalid_argument("offsets must begin with 0, never fall, and end with the number of slots, " +
                                std::to_string(slots.size()));
  }
  Slot least = 0;
  Slot most = -1;
  for (const Slot slot : slots) {
    least = std::min(least, slot);
    most = std::max(most, slot);
  }
  if (least < 0) throw std::out_of_range("slot " + std::to_string(least) + " is negative");

  const std::shared_ptr<Slot[]> copy(new Slot[slots.size()]);
  std::copy(slots.begin(), slots.end(), copy.get());
  std::vector<Slab::View> lists;
  lists.reserve(offsets.size() - 1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    lists.push_back({std::shared_ptr<const Slot[]>(copy, copy.get() + offsets[i]),
                     static_cast<std::size_t>(offsets[i + 1] - offsets[i])});
  }
  adopt(std::move(lists), std::int64_t{most} + 1);
}

void Plan::adopt(std::vector<Slab::View> lists, std::int64_t slot_limit) {
  lists_ = std::move(lists);
  slot_limit_ = slot_limit;
  ranges_.clear();
}

const Ranges& Plan::ranges(int window, Tokens which) {
  for (const auto& made : ranges_) {
    if (made->window == window && made->which == which) return *made;
  }
  auto ranges = std::make_unique<Ranges>(Ranges{window, which, {}, {0}});
  int row = 0;
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    const Slab::View& view = lists_[i];
    const auto size = static_cast<std::int64_t>(view.size);
    const std::int64_t end = which == Tokens::kAll ? size : std::max<std::int64_t>(size - 1, 0);
    std::int64_t start = window == 0 ? 0 : std::max<std::int64_t>(size - window, 0);
    while (start < end) {
      const std::int64_t stop = std::min(end, (start / range_tokens_ + 1) * range_tokens_);
      ranges->list.push_back(
          {static_cast<int>(i), view.slots.get() + start, static_cast<int>(stop - start), row++});
      start = stop;
    }
    ++row;
    ranges->first_row.push_back(row);
  }
  ranges_.push_back(std::move(ranges));
  return *ranges_.back();
}

}  // namespace lamina::attention
