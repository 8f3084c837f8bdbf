#pragma once

#include <cstdint>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/layout.hpp"
#include "sim/h2m2/load.hpp"

namespace lamina::h2m2 {

// Frames of each side that a mapping is not offered. They make up for what a policy does not count when it
// takes heads as equal shares of whole pages, so that what it finds to fit does fit, page by page.
struct Reserve {
  std::int64_t hbm_frames = 0;
  std::int64_t lpddr_frames = 0;
};

// On each side: for each weight region the most that a boundary between two heads can round up to whole
// pages, and a page a layer for the activations (a tensor of batch x hidden; larger ones take turns). On the
// LPDDR side one more, through which pages change sides when everything else is full.
Reserve reserve_of(const Board& board, const Shape& shape);

// What a mapping has to fit in when so many columns are in use.
Room paged_room(const Board& board, const Shape& shape, std::int64_t columns);

// Frames that a side's capacity comes to.
std::int64_t frames_of(const Side& side, const Board& board);

// The most columns for which, and for any smaller number of which, there are a mapping by heads and a mapping
// by whole layers that fit. 0 if there is no room for KV, or not even for the weights.
std::int64_t most_columns(const Board& board, const Shape& shape);

// Bytes that fragmentation would take on each side, on average, if every request's K and V of each layer were
// paged for themselves: half a page each.
std::int64_t waste_by_request(const Board& board, const Shape& shape, std::int64_t batch);

// What the paper's equation 2 comes to for the activations, a tensor of batch x hidden in each layer: the
// unused rest of its last page. At whole pages of weights and KV this is all there is.
std::int64_t waste_of_activations(const Board& board, const Shape& shape, std::int64_t batch);

}  // namespace lamina::h2m2
