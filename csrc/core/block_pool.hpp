#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace lamina {

// KV memory in blocks that remembers what it held, as vLLM's does: blocks are given back to the end of a line
// and taken from its front, and until they are taken again they can be reused as they are, by a request with
// the same tokens. Three kinds stand in the line: prefix blocks of the trace (shared, each as a whole), what
// a preempted request had besides them (its leading blocks last as long as possible), and what no one can use
// again.
class BlockPool {
public:
  using Request = std::uint32_t;

  explicit BlockPool(std::int64_t blocks) : capacity_(blocks), free_(blocks) {
    line_.push_back({});  // the line's two ends
    if (blocks > 0) append({blocks, Kind::kNothing, 0});
  }

  std::int64_t capacity() const { return capacity_; }
  std::int64_t free() const { return free_; }

  // There must be as many.
  void take(std::int64_t blocks);
  void give(std::int64_t blocks);

  // A prefix block of the trace: whether it is here, and whether someone holds it.
  bool has(std::int64_t id) const { return prefixes_.contains(id); }
  bool stored(std::int64_t id) const {
    const auto match = prefixes_.find(id);
    return match != prefixes_.end() && match->second.owners > 0;
  }
  // It must be here. It takes `blocks` out of the line if no request held it.
  void hold(std::int64_t id);
  // The caller has computed it in so many blocks of its own. If it was here already, these are given back.
  void add(std::int64_t id, std::int64_t blocks);
  void drop(std::int64_t id);

  // Full blocks of a preempted request; how many of them, the leading ones, are still here; taking these; and
  // leaving them to be taken by others.
  void keep(Request request, std::int64_t blocks);
  std::int64_t retained(Request request) const;
  std::int64_t take_retained(Request request);
  void forget(Request request);

  // Throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  enum class Kind : std::uint8_t { kNothing, kPrefix, kRequest };
  // A stretch of the line.
  struct Stretch {
    std::int64_t blocks = 0;
    Kind kind = Kind::kNothing;
    std::int64_t of = 0;
    std::uint32_t before = 0, after = 0;
  };
  struct Prefix {
    std::int64_t blocks;
    std::int32_t owners;
    std::uint32_t stretch;  // held by no request: its place in the line
  };

  std::uint32_t append(Stretch stretch);
  void remove(std::uint32_t place);

  std::int64_t capacity_;
  std::int64_t free_;
  std::vector<Stretch> line_;  // a ring through entry 0
  std::vector<std::uint32_t> unused_;
  std::unordered_map<std::int64_t, Prefix> prefixes_;
  std::unordered_map<Request, std::uint32_t> retained_;
};

}  // namespace lamina
