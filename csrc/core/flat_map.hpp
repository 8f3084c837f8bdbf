#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lamina {

// From a caller's 64-bit id, any value of it, to a small handle. Open addressing with linear probing in one
// array: a hit is usually one cache line, where std::unordered_map chases two pointers and divides.
class FlatMap {
public:
  using Key = std::int64_t;
  using Handle = std::uint32_t;
  // What find() says of an absent key, and what marks a cell as empty: ids have no value to spare for it.
  static constexpr Handle kNone = UINT32_MAX;

  FlatMap() { rebuild(kFewestCells); }

  std::size_t size() const noexcept { return size_; }

  Handle find(Key key) const noexcept { return cells_[probe(key)].handle; }

  // The key must be absent. Throws std::bad_alloc before anything has changed.
  void insert(Key key, Handle handle) {
    // At most half full: probes stay short, and there is always an empty cell to stop at.
    if ((size_ + 1) * 2 > cells_.size()) rebuild(cells_.size() * 2);
    cells_[probe(key)] = {key, handle};
    ++size_;
  }

  // The key must be present. Followers move back into the hole, so there are no tombstones to slow later
  // lookups down however long requests come and go.
  void erase(Key key) noexcept {
    std::size_t hole = probe(key);
    for (std::size_t at = after(hole); cells_[at].handle != kNone; at = after(at)) {
      // One that has not travelled past the hole from its home would be lost in front of it.
      if (distance(home(cells_[at].key), at) < distance(hole, at)) continue;
      cells_[hole] = cells_[at];
      hole = at;
    }
    cells_[hole].handle = kNone;
    --size_;
  }

  // Calls visit(key, handle) for every entry, in no particular order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Cell& cell : cells_) {
      if (cell.handle != kNone) visit(cell.key, cell.handle);
    }
  }

private:
  static constexpr std::size_t kFewestCells = 16;

  struct Cell {
    Key key = 0;
    Handle handle = kNone;
  };

  // Fibonacci hashing: the top bits of the product depend on every bit of the key, and runs of consecutive
  // ids, the usual case, are spread almost evenly.
  std::size_t home(Key key) const noexcept {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15u) >> shift_);
  }
  std::size_t after(std::size_t at) const noexcept { return (at + 1) & (cells_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return (to - from) & (cells_.size() - 1);
  }

  // The cell that holds the key, or the empty one where it would go.
  std::size_t probe(Key key) const noexcept {
    std::size_t at = home(key);
    while (cells_[at].handle != kNone && cells_[at].key != key) at = after(at);
    return at;
  }

  void rebuild(std::size_t cells) {
    const std::vector<Cell> old = std::exchange(cells_, std::vector<Cell>(cells));
    shift_ = 64 - std::countr_zero(cells);
    for (const Cell& cell : old) {
      if (cell.handle != kNone) cells_[probe(cell.key)] = cell;
    }
  }

  std::vector<Cell> cells_;
  std::size_t size_ = 0;
  int shift_ = 0;
};

}  // namespace lamina
