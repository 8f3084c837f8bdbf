#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"

namespace lamina::attention::cuda {

// Where the rows of one KV head lie.
struct Rows {
  const char* k;
  const char* v;
  std::int32_t slot_bytes;  // from one slot to the next
  std::int32_t row_bytes;   // of a row; what a tile has beyond is zero
};

// Gathered rows of K or V in shared memory: kRows tokens by kRowBytes bytes, in 16-byte chunks. The matrix
// loads take one chunk column of eight rows at once; permuting the chunks of each row by its number puts
// those eight into different banks. Begins at a multiple of 128 bytes.
//
// A lane keeps the place where its share begins and reaches the rest by constants, which is one instruction
// and no register each: hence down() and right().
template <int kRows_, int kRowBytes_>
struct Swizzled {
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kRowBytes % 128 == 0, "eight chunks are permuted among each other");

  // The byte at which a chunk of a row begins.
  static LAMINA_HD int at(int row, int chunk) { return row * kRowBytes + (chunk ^ (row & 7)) * 16; }

  // From at(row, chunk) to at(row + rows, chunk), if the numbers have no bit in common.
  static LAMINA_HD int down(int at, int rows) { return (at ^ ((rows & 7) * 16)) + rows * kRowBytes; }

  // From at(row, chunk) to at(row, chunk + chunks), likewise.
  static LAMINA_HD int right(int at, int chunks) { return (at ^ ((chunks & 7) * 16)) + (chunks & ~7) * 16; }
};

// Rows that one warp gathers and uses.
//
// How its lanes fill them: kLanes neighbours copy a row, as wide as they are, so that global memory is read
// in whole lines; there are 32 / kLanes such bands, of kBand rows each. In copy i a lane does row i / kTurns
// of its band (a row wider than 32 chunks takes two turns).
template <int kRows_, int kRowBytes_>
struct Tile : Swizzled<kRows_, kRowBytes_> {
  using Base = Swizzled<kRows_, kRowBytes_>;
  using Base::kChunks;
  using Base::kRows;
  static constexpr int kLanes = kChunks < 32 ? kChunks : 32;
  static constexpr int kBand = kRows * kLanes / 32;
  static constexpr int kTurns = kChunks / kLanes;
  static constexpr int kCopies = kBand * kTurns;
  static_assert(kRows * kLanes % 32 == 0 && kChunks % kLanes == 0, "every lane copies as much");
  static_assert(kBand <= kLanes, "each band's lanes hold its slots");

  static LAMINA_HD int first_row(int lane) { return lane / kLanes * kBand; }
  static LAMINA_HD int first_chunk(int lane) { return lane % kLanes; }
  // Where copy i goes, from at(first_row(lane), first_chunk(lane)).
  static LAMINA_HD int copy(int first, int i) {
    return Base::right(Base::down(first, i / kTurns), i % kTurns * kLanes);
  }

  // Which of the tile's tokens a lane holds the slot of, so that copy i finds its own at lane i / kTurns of
  // the band; kRows or more: none.
  static LAMINA_HD int token_of(int lane) {
    return lane % kLanes < kBand ? lane / kLanes * kBand + lane % kLanes : kRows;
  }
};

}  // namespace lamina::attention::cuda
