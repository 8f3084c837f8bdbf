#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace lamina::h2m2 {

// The translations that a chip's MMU holds: the least recently used one makes room. A miss walks the flat
// table, one access of so long, so many walks at once; other requests for the page meanwhile wait for the
// same walk.
class Tlb {
public:
  Tlb(int entries, double miss_ns, int walks_at_once);

  // When the page's translation is known, requested at this time; times never go back.
  double translate(std::int64_t page, double at);

  std::int64_t misses() const { return misses_; }

private:
  struct Entry {
    std::list<std::int64_t>::iterator place;
    double known = 0;
  };

  std::size_t entries_;
  double miss_ns_;
  std::vector<double> walkers_;     // each free from here on
  std::list<std::int64_t> by_use_;  // the last used one first
  std::unordered_map<std::int64_t, Entry> stored_;
  std::int64_t misses_ = 0;
};

}  // namespace lamina::h2m2
