#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace lamina {

// Counts the KV tokens of each pool of attention memory: one pool when heads are split over the workers (all
// hold the same tokens), one per worker when requests are. Capacity is handed out in blocks (1 token for
// Lamina, 16 for paged attention). Prompt prefixes may be shared: a block that several requests begin with is
// stored, and counted, once.
class KvPools {
public:
  KvPools(int pools, std::int64_t tokens_per_pool, int block_tokens)
      : block_(block_tokens), capacity_(tokens_per_pool / block_tokens * block_tokens) {
    free_.assign(static_cast<std::size_t>(pools), capacity_);
    prefixes_.resize(free_.size());
  }

  int pools() const { return static_cast<int>(free_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t free(int pool) const { return free_[static_cast<std::size_t>(pool)]; }
  std::int64_t used() const {
    std::int64_t used = 0;
    for (const std::int64_t free : free_) used += capacity_ - free;
    return used;
  }
  int block() const { return block_; }
  std::int64_t rounded(std::int64_t tokens) const { return (tokens + block_ - 1) / block_ * block_; }

  // The pool with the most room.
  int roomiest() const {
    int best = 0;
    for (int pool = 1; pool < pools(); ++pool) {
      if (free(pool) > free(best)) best = pool;
    }
    return best;
  }

  void take(int pool, std::int64_t tokens) { free_[static_cast<std::size_t>(pool)] -= tokens; }
  void give(int pool, std::int64_t tokens) { free_[static_cast<std::size_t>(pool)] += tokens; }

  // Tokens that storing these prefix blocks would take on top of what the pool holds already.
  std::int64_t missing(int pool, std::span<const std::int64_t> ids, std::int64_t prompt,
                       int id_tokens) const {
    std::int64_t tokens = 0;
    const auto& stored = prefixes_[static_cast<std::size_t>(pool)];
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!stored.contains(ids[i])) tokens += tokens_of(i, prompt, id_tokens);
    }
    return tokens;
  }

  // Tokens that this many prefix blocks take in an empty pool.
  std::int64_t prefix_tokens_alone(std::size_t ids, std::int64_t prompt, int id_tokens) const {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < ids; ++i) tokens += tokens_of(i, prompt, id_tokens);
    return tokens;
  }

  void hold(int pool, std::span<const std::int64_t> ids, std::int64_t prompt, int id_tokens) {
    auto& stored = prefixes_[static_cast<std::size_t>(pool)];
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Prefix& prefix = stored[ids[i]];
      if (prefix.owners++ == 0) {
        prefix.tokens = tokens_of(i, prompt, id_tokens);
        take(pool, prefix.tokens);
      }
    }
  }

  void drop(int pool, std::span<const std::int64_t> ids) {
    auto& stored = prefixes_[static_cast<std::size_t>(pool)];
    for (const std::int64_t id : ids) {
      const auto match = stored.find(id);
      if (--match->second.owners == 0) {
        give(pool, match->second.tokens);
        stored.erase(match);
      }
    }
  }

  // For check_integrity(): what shared prefixes take, and whether their owners are these.
  std::int64_t prefix_tokens(int pool) const {
    std::int64_t tokens = 0;
    for (const auto& [id, prefix] : prefixes_[static_cast<std::size_t>(pool)]) tokens += prefix.tokens;
    return tokens;
  }
  bool holds(int pool, const std::unordered_map<std::int64_t, std::int64_t>& owners) const {
    const auto& stored = prefixes_[static_cast<std::size_t>(pool)];
    if (stored.size() != owners.size()) return false;
    for (const auto& [id, prefix] : stored) {
      const auto match = owners.find(id);
      if (match == owners.end() || match->second != prefix.owners) return false;
    }
    return true;
  }

private:
  struct Prefix {
    std::int32_t owners = 0;
    std::int64_t tokens = 0;
  };

  // The last block of a prompt may be partly filled.
  std::int64_t tokens_of(std::size_t place, std::int64_t prompt, int id_tokens) const {
    const std::int64_t left = prompt - static_cast<std::int64_t>(place) * id_tokens;
    return rounded(left < id_tokens ? left : id_tokens);
  }

  int block_;
  std::int64_t capacity_;
  std::vector<std::int64_t> free_;
  std::vector<std::unordered_map<std::int64_t, Prefix>> prefixes_;
};

}  // namespace lamina
