#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/tile.hpp"

namespace lamina::attention::cuda {

// One warp's tiles on their way from the arena: K and V of two groups of tokens, each tile a set of
// asynchronous copies of its own, in the order K, V, K, V. The warp waits for the oldest, uses it and refills
// it with what comes two groups later, so that three of the four are always under way. No other warp takes
// part.
//
//   for (int i = -kAhead; i < groups; ++i) {
//     if (i >= 0) use(keys(i));
//     fetch_keys(i);    // of group i + kAhead
//     if (i >= 0) use(values(i));
//     fetch_values(i);
//   }
//
// Tiles are named by their byte in the block's shared memory.
template <typename Tile>
class Ring {
public:
  static constexpr int kAhead = 2;
  static constexpr int kBytes = 2 * kAhead * Tile::kBytes;

  // Group i is the tokens [begin + i * stride, + kRows) of the index lists, those below `end`.
  LAMINA_DEVICE Ring(int base, int lane, const Rows& rows, const std::int32_t* slots, std::int32_t begin,
                     std::int32_t end, std::int32_t stride)
      : base_(base),
        copy_(Tile::at(Tile::first_row(lane), Tile::first_chunk(lane))),
        byte_(Tile::first_chunk(lane) * 16),
        rows_(rows),
        slots_(slots),
        next_(begin + Tile::token_of(lane)),
        left_(Tile::token_of(lane) < Tile::kRows ? end - begin - Tile::token_of(lane) : 0),
        stride_(stride) {
    // A row cannot be requested before its index has come: indices are read two groups ahead of their rows.
    slots_now_ = read_slots();
    slots_then_ = read_slots();
  }

  LAMINA_DEVICE int keys(int i) { return await(tile(i)); }
  LAMINA_DEVICE int values(int i) { return await(tile(i) + Tile::kBytes); }

  LAMINA_DEVICE void fetch_keys(int i) { fetch(tile(i), rows_.k); }
  LAMINA_DEVICE void fetch_values(int i) {
    fetch(tile(i) + Tile::kBytes, rows_.v);
    slots_now_ = slots_then_;
    slots_then_ = read_slots();
  }

  // Nothing is under way any more and the memory is free for other use.
  LAMINA_DEVICE void close() {
    wait_async<0>();
    sync_warp();
  }

private:
  LAMINA_DEVICE int tile(int i) const { return base_ + (i & (kAhead - 1)) * 2 * Tile::kBytes; }

  LAMINA_DEVICE int await(int tile) {
    wait_async<2 * kAhead - 1>();
    sync_warp();  // the other lanes' copies have come as well
    return tile;
  }

  // This lane's slot of the next group; -1 where there is no token.
  LAMINA_DEVICE std::int32_t read_slots() {
    const std::int32_t slot = left_ > 0 ? slots_[next_] : -1;
    next_ += stride_;
    left_ -= stride_;
    return slot;
  }

  LAMINA_DEVICE void fetch(int tile, const char* rows) {
    sync_warp();  // every lane has read what was here
    const char* const column = rows + byte_;
    const int first = tile + copy_;
    LAMINA_UNROLL
    for (int i = 0; i < Tile::kCopies; ++i) {
      const int beyond = i % Tile::kTurns * Tile::kLanes * 16;
      const std::int32_t slot = shuffle_within<Tile::kLanes>(slots_now_, i / Tile::kTurns);
      // An unused copy reads slot 0 or the memory next to a row; its result is never read.
      const std::int64_t at = static_cast<std::int64_t>(slot < 0 ? 0 : slot) * rows_.slot_bytes;
      copy_async_16(shared_memory() + Tile::copy(first, i), column + at + beyond,
                    slot >= 0 && byte_ + beyond < rows_.row_bytes);
    }
    commit_async();
  }

  int base_;
  int copy_;
  int byte_;
  Rows rows_;
  const std::int32_t* slots_;
  std::int32_t next_;
  std::int32_t left_;
  std::int32_t stride_;
  std::int32_t slots_now_;
  std::int32_t slots_then_;
};

}  // namespace lamina::attention::cuda
