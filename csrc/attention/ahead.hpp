#pragma once

#include <cstddef>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Fetches rows that will be needed soon from memory into the cache, in the order in which they lie there, a
// few cache lines between any two steps of the arithmetic: all at once they would hold up the loads that the
// arithmetic waits for.
class Ahead {
public:
  static constexpr int kBytes = 256;  // what one fetch is about

  Ahead(const RangeTask& task, std::size_t number_bytes) {
    const std::size_t row = static_cast<std::size_t>(task.shape.head_dim) * number_bytes;
    const int heads = task.last - task.first;
    const bool side_by_side = task.source->head_stride == row;
    pieces_ = side_by_side ? 1 : heads;
    piece_bytes_ = side_by_side ? static_cast<std::size_t>(heads) * row : row;
    piece_stride_ = task.source->head_stride;
    first_ = static_cast<std::size_t>(task.first) * task.source->head_stride;
  }

  // From now on, these tokens' rows.
  void aim(const std::byte* base, const std::size_t* offsets, int tokens) {
    base_ = base + first_;
    offset_ = offsets_ = offsets;
    stop_ = offsets + tokens;
    pieces_left_ = pieces_;
    line_ = tokens > 0 ? base_ + *offset_ : nullptr;
    end_ = line_ + piece_bytes_;
  }

  // Always inlined: in the compiler's eyes a function that only fetches ahead has no effect, and its calls
  // go; and a call of another function would empty the vector registers.
  [[gnu::always_inline]] inline void fetch(int times) {
    for (; times > 0 && line_ != nullptr; --times) {
      __builtin_prefetch(line_);
      __builtin_prefetch(line_ + 64);
      __builtin_prefetch(line_ + 128);
      __builtin_prefetch(line_ + 192);
      line_ += kBytes;
      if (line_ < end_) continue;
      if (++offset_ == stop_) {
        if (--pieces_left_ == 0) {
          line_ = nullptr;
          return;
        }
        base_ += piece_stride_;
        offset_ = offsets_;
      }
      line_ = base_ + *offset_;
      end_ = line_ + piece_bytes_;
    }
  }

private:
  const std::byte* line_ = nullptr;  // null: nothing left
  const std::byte* end_ = nullptr;
  const std::byte* base_ = nullptr;
  const std::size_t* offset_ = nullptr;
  const std::size_t* offsets_ = nullptr;
  const std::size_t* stop_ = nullptr;
  int pieces_left_ = 0;
  int pieces_;
  std::size_t piece_bytes_;
  std::size_t piece_stride_;
  std::size_t first_;
};

// Some tokens of one KV head, and what to fetch meanwhile.
struct Step {
  const std::byte* rows;
  const std::size_t* offsets;  // of the tokens' rows; a multiple of kStep, the last token repeated
  int at;                      // of the block's tokens, the first
  int tokens;
  int dim;
  int fetches;  // for each kStep tokens
  Ahead& ahead;
};

// What becomes of the sums that are there already.
struct Before {
  bool fresh;          // there are none
  const float* decay;  // for each query head, by how much they shrink; null: not at all
};

}  // namespace
}  // namespace lamina::attention
