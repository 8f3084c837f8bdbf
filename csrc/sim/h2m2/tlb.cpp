#include "sim/h2m2/tlb.hpp"

#include <algorithm>
#include <stdexcept>

namespace lamina::h2m2 {

Tlb::Tlb(int entries, double miss_ns, int walks_at_once)
    : entries_(static_cast<std::size_t>(std::max(entries, 0))),
      miss_ns_(miss_ns),
      walkers_(static_cast<std::size_t>(std::max(walks_at_once, 0)), 0.0) {
  if (entries < 1 || walks_at_once < 1 || miss_ns < 0) {
    throw std::invalid_argument("a TLB has entries and a walker, and a walk takes time");
  }
}

double Tlb::translate(std::int64_t page, double at) {
  if (const auto match = stored_.find(page); match != stored_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, match->second.place);
    return std::max(at, match->second.known);
  }
  ++misses_;
  double& walker = *std::min_element(walkers_.begin(), walkers_.end());
  walker = std::max(walker, at) + miss_ns_;
  if (stored_.size() == entries_) {
    stored_.erase(by_use_.back());
    by_use_.pop_back();
  }
  by_use_.push_front(page);
  stored_[page] = {by_use_.begin(), walker};
  return walker;
}

}  // namespace lamina::h2m2
